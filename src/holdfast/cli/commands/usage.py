"""`holdfast usage`."""

from typing import Annotated

import typer

from holdfast.cli.options import DatabaseOptions, JsonOption, command, example

app = typer.Typer()


@app.command(epilog=example("usage --by model --from 2026-11-01"))
@command
async def usage(
    at: DatabaseOptions,
    *,
    by: Annotated[str, typer.Option("--by", metavar="owner|model|session|day", help="What to sum up by.")] = "day",
    first: Annotated[str | None, typer.Option("--from", metavar="DATE", help="The first UTC day.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DATE", help="The last UTC day (today).")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only the calls of this owner.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="Only those of this session.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many rows.")] = 400,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
) -> None:
    """Show what model calls used and cost. Without dates: in the last 30 days."""
    from holdfast.cli.usage import UsageChoice, show_usage

    choice = UsageChoice(by=by, first=first, last=last, owner=owner, session=session, limit=limit)
    await show_usage(at.config(), choice, as_json=as_json, as_csv=as_csv)
