"""`holdfast db`."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import DatabaseOptions, DirectDatabaseOptions, JsonOption, command, example

app = typer.Typer(
    name="db",
    help="Look at the database, migrate it and back it up.",
    epilog=example("db backup monday.db"),
    no_args_is_help=True,
)


@app.command("backup", epilog=example("db backup monday.db"))
@command
async def backup(
    at: DirectDatabaseOptions, *, file: Annotated[Path, typer.Argument(help="A file that does not exist yet.")]
) -> None:
    """Copy the database to a file, consistently, while it is in use.

    A backup of PostgreSQL is a dump for pg_restore, made by pg_dump.
    """
    from holdfast.cli.database import back_up

    await back_up(at.config(), file)


@app.command("migrate", epilog=example("db migrate --check"))
@command
async def migrate(
    at: DirectDatabaseOptions,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if a migration is pending.")
    ] = False,
) -> int:
    """Bring the database to this release's schema, and list the migrations that ran."""
    from holdfast.cli.database import migrate

    return await migrate(at.config(), only_check=check)


@app.command("status", epilog=example("db status"))
@command
async def status(at: DatabaseOptions, *, as_json: JsonOption = False) -> None:
    """Show where the database is, its size, and its contents in numbers."""
    from holdfast.cli.database import show_status

    await show_status(at.config(), as_json=as_json)
