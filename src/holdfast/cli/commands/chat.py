"""`holdfast chat`."""

from typing import Annotated

import typer

from holdfast.cli.options import AllowOption, ContinueOption, DirOption, TurnTargetOptions, command, example

app = typer.Typer()


@app.command(
    epilog=example("chat --allow 'write(docs/*)'")
    + "\nLeave with Ctrl-D, or be killed: `holdfast chat` in the same folder continues what is unfinished."
)
@command
async def chat(
    at: TurnTargetOptions,
    *,
    session: ContinueOption = None,
    new: Annotated[bool, typer.Option("--new", help="Start a new session even if one here is unfinished.")] = False,
    allow: AllowOption = None,
    folder: DirOption = None,
) -> int:
    """Talk with an agent. Continues this folder's unfinished session, or starts a new one."""
    from holdfast.cli.chat import chat
    from holdfast.cli.conversation import ChatOptions
    from holdfast.cli.setup import SessionSetup
    from holdfast.cli.target import find_folder

    target = at.target()
    setup = SessionSetup(folder=find_folder(target, folder), model=at.model, allow=tuple(allow or ()))
    return await chat(target, ChatOptions(setup=setup, session=session, new=new))
