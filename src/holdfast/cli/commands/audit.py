"""`holdfast audit`."""

from typing import Annotated

import typer

from holdfast.cli.options import DatabaseOptions, JsonOption, command, example

app = typer.Typer()


@app.command(epilog=example("audit --after 0 --json > audit.jsonl"))
@command
async def audit(
    at: DatabaseOptions,
    *,
    after: Annotated[
        int | None, typer.Option("--after", metavar="NUMBER", min=0, help="All entries after this number.")
    ] = None,
    last: Annotated[int, typer.Option("--last", metavar="COUNT", min=1, help="The latest so many entries.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show what admins, keys and tokens did."""
    from holdfast.cli.audit import show_audit

    await show_audit(at.config(), after=after, last=last, as_json=as_json)
