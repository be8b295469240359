"""`holdfast requests`, `approve`, `deny` and `answer`."""

from typing import Annotated

import typer

from holdfast.cli.options import JsonOption, OfSessionOption, TargetOptions, TurnTargetOptions, command, example

app = typer.Typer()

RequestArgument = Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id, or the beginning of it.")]
WorkOption = Annotated[bool, typer.Option("--work", help="Run the session here, until it is idle or waits.")]


@app.command(epilog=example("requests --json"))
@command
async def requests(at: TargetOptions, *, session: OfSessionOption = None, as_json: JsonOption = False) -> None:
    """Show all open requests in full. A long list opens in $PAGER, or in less."""
    from holdfast.cli.requests import list_requests

    await list_requests(at.target(), session, as_json=as_json)


@app.command(epilog=example("approve 3f2a9c1b"))
@command
async def approve(
    at: TurnTargetOptions,
    *,
    request: RequestArgument,
    for_session: Annotated[
        bool, typer.Option("--for-session", help="Also allow the same later in this session.")
    ] = False,
    work: WorkOption = False,
) -> None:
    """Approve what a session asks for, from any terminal. The first answer counts."""
    from holdfast.cli.requests import approval, give_answer

    await give_answer(at.target(), request, approval(for_session=for_session), work=work)


@app.command(epilog=example("deny 3f2a9c1b --reason 'Not in this folder.'"))
@command
async def deny(
    at: TurnTargetOptions,
    *,
    request: RequestArgument,
    reason: Annotated[str, typer.Option("--reason", help="The reason, which the model reads.")] = "",
    work: WorkOption = False,
) -> None:
    """Deny what a session asks for, from any terminal. The first answer counts."""
    from holdfast.cli.requests import denial, give_answer

    await give_answer(at.target(), request, denial(reason), work=work)


@app.command(epilog=example("answer 3f2a9c1b 2"))
@command
async def answer(
    at: TurnTargetOptions,
    *,
    request: RequestArgument,
    text: Annotated[str, typer.Argument(help="The answer, or the number of a choice.")],
    work: WorkOption = False,
) -> None:
    """Answer a question that a session asks, from any terminal. The first answer counts."""
    from holdfast.cli.requests import give_answer, reply

    await give_answer(at.target(), request, reply(text), work=work)
