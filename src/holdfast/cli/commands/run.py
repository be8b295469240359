"""`holdfast run`."""

from typing import Annotated

import typer

from holdfast.cli.options import (
    AllowOption,
    ContinueOption,
    DirOption,
    JsonOption,
    TurnTargetOptions,
    command,
    example,
)

app = typer.Typer()

EPILOG = (
    example("run 'Sum up README.md' --timeout 120")
    + """

\b
Exit status: 0 completed, 3 stopped, 4 error, 5 timed out, 6 waits for an answer,
1 the database, the server or the system failed, 2 wrong option or setting.

\b
With --json, one object to a line:
  {"type": "event", "position", "id", "time", "name", "data"}   an event of the log
  {"type": "delta", "message_id", "block", "kind", "text"}      a piece of an answer
  {"type": "result", "session_id", "turn_id", "reason", "text", "error", "tasks"}   the last line;
                                              tasks are the commands that run on in the background"""
)


@app.command(epilog=EPILOG)
@command
async def run(
    at: TurnTargetOptions,
    *,
    prompt: Annotated[str, typer.Argument(help="The message to send; - reads it from stdin.")],
    as_json: JsonOption = False,
    allow: AllowOption = None,
    session: ContinueOption = None,
    folder: DirOption = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="Leave after so long.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tools with effects only say what they would do.")] = False,
) -> int:
    """Send one message and print the answer. No one is asked: calls that are not allowed are denied."""
    from holdfast.cli.run import RunOptions, run
    from holdfast.cli.setup import SessionSetup
    from holdfast.cli.target import find_folder

    target = at.target()
    setup = SessionSetup(folder=find_folder(target, folder), model=at.model, allow=tuple(allow or ()), dry_run=dry_run)
    options = RunOptions(prompt=prompt, setup=setup, session=session, timeout_seconds=timeout, as_json=as_json)
    return await run(target, options)
