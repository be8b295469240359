"""`holdfast sessions`."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import IdArgument, JsonOption, TargetOptions, TurnTargetOptions, command, example

app = typer.Typer(
    name="sessions",
    help="List, show, continue, compact, move, delete, export and import sessions.",
    epilog=example("sessions list --search invoice"),
    no_args_is_help=True,
)

MessageArgument = Annotated[
    str, typer.Argument(help="The message's id, or words in it: the last such message. Left out: the last message.")
]


@app.command("list", epilog=example("sessions list --limit 5"))
@command
async def list_sessions(
    at: TargetOptions,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    search: Annotated[str, typer.Option("--search", help="Only those with this in the title or a message.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List the latest sessions, the newest first."""
    from holdfast.cli import sessions

    await sessions.list_sessions(at.target(), limit=limit, search=search, as_json=as_json)


@app.command("show", epilog=example("sessions show 3f2a9c1b"))
@command
async def show_session(
    at: TargetOptions,
    *,
    session: IdArgument,
    events: Annotated[bool, typer.Option("--events", help="The log itself, event by event.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a session's conversation, or its log."""
    from holdfast.cli import sessions

    await sessions.show_session(at.target(), session, events=events, as_json=as_json)


@app.command("move", epilog=example("sessions move 3f2a9c1b ."))
@command
async def move_session(
    at: TargetOptions,
    *,
    session: IdArgument,
    folder: Annotated[Path, typer.Argument(help="The folder; on a server, an absolute path there.")],
) -> None:
    """Let a session work in another folder, or in the folder that now has the name of its own."""
    from holdfast.cli import sessions

    await sessions.move_session(at.target(), session, folder)


@app.command("delete", epilog=example("sessions delete 3f2a9c1b --yes"))
@command
async def delete_session(
    at: TargetOptions,
    *,
    session: IdArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask first.")] = False,
) -> None:
    """Remove a session and all of its log. The record of its usage is kept."""
    from holdfast.cli import sessions

    await sessions.delete_session(at.target(), session, yes=yes)


@app.command("compact", epilog=example("sessions compact 3f2a9c1b --instructions 'Keep all file names.'"))
@command
async def compact_session(
    at: TurnTargetOptions,
    *,
    session: IdArgument,
    instructions: Annotated[str, typer.Option("--instructions", help="What the summary should keep.")] = "",
    cancel: Annotated[bool, typer.Option("--cancel", help="Give up the summary that is being made.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Summarise the older part of a session for its model. The log keeps everything."""
    from holdfast.cli import sessions

    if cancel:
        await sessions.cancel_compaction(at.target(), session, instructions=instructions, as_json=as_json)
    else:
        await sessions.compact_session(at.target(), session, instructions=instructions, as_json=as_json)


@app.command("continue", epilog=example("sessions continue 3f2a9c1b"))
@command
async def continue_session(at: TurnTargetOptions, *, session: IdArgument, as_json: JsonOption = False) -> int:
    """Go on after a turn that ended with an error, also for want of money, and print the answer."""
    from holdfast.cli.run import RunOptions, run
    from holdfast.cli.setup import SessionSetup
    from holdfast.cli.target import find_folder

    target = at.target()
    setup = SessionSetup(folder=find_folder(target, None), model=at.model)
    return await run(target, RunOptions(prompt=None, setup=setup, session=session, as_json=as_json))


@app.command("pin", epilog=example("sessions pin 3f2a9c1b 'never push'"))
@command
async def pin_message(at: TargetOptions, *, session: IdArgument, message: MessageArgument = "") -> None:
    """Have the model keep a message word for word, whatever is summarised."""
    from holdfast.cli import sessions

    await sessions.pin_message(at.target(), session, message, pinned=True)


@app.command("unpin", epilog=example("sessions unpin 3f2a9c1b 'never push'"))
@command
async def unpin_message(at: TargetOptions, *, session: IdArgument, message: MessageArgument = "") -> None:
    """Let a pinned message be summarised again."""
    from holdfast.cli import sessions

    await sessions.pin_message(at.target(), session, message, pinned=False)


@app.command("export", epilog=example("sessions export 3f2a9c1b talk.json"))
@command
async def export_session(
    at: TargetOptions,
    *,
    session: IdArgument,
    file: Annotated[Path | None, typer.Argument(help="A file that does not exist yet; stdout if left out.")] = None,
) -> None:
    """Write a session's whole log to a JSON file."""
    from holdfast.cli import sessions

    await sessions.export_session(at.target(), session, file)


@app.command("import", epilog=example("sessions import talk.json"))
@command
async def import_session(
    at: TargetOptions,
    *,
    file: Annotated[Path, typer.Argument(help="An exported session; - reads stdin.")],
) -> None:
    """Make a new, idle session from an exported one. Grants, paths and open turns are left out."""
    from holdfast.cli import sessions

    await sessions.import_session(at.target(), file)
