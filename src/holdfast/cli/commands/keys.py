"""`holdfast keys`."""

from typing import Annotated

import typer

from holdfast.cli.options import DatabaseOptions, JsonOption, command, example

app = typer.Typer(
    name="keys",
    help="Make, list and revoke API keys for `holdfast serve`.",
    epilog=example("keys create --name laptop --owner ada"),
    no_args_is_help=True,
)


@app.command("create", epilog=example("keys create --name laptop --owner ada --role user"))
@command
async def create_key(
    at: DatabaseOptions,
    *,
    name: Annotated[str, typer.Option("--name", help="A name to know it by.")],
    role: Annotated[str, typer.Option("--role", metavar="user|admin", help="An admin may choose anything.")] = "user",
    owner: Annotated[str | None, typer.Option("--owner", help="Whose sessions it opens; yours if left out.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key. It is shown once, and stored nowhere."""
    from holdfast.cli import keys

    await keys.create_key(at.config(), name=name, role=keys.checked_role(role), owner=owner, as_json=as_json)


@app.command("list", epilog=example("keys list"))
@command
async def list_keys(at: DatabaseOptions, *, as_json: JsonOption = False) -> None:
    """List all keys, also revoked ones. Shows their ids and owners, never the keys themselves."""
    from holdfast.cli import keys

    await keys.list_keys(at.config(), as_json=as_json)


@app.command("revoke", epilog=example("keys revoke 3f2a9c1b5d7e"))
@command
async def revoke_key(
    at: DatabaseOptions,
    *,
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `holdfast keys list` shows it.")],
) -> None:
    """Refuse a key from now on, and end its open streams."""
    from holdfast.cli import keys

    await keys.revoke_key(at.config(), key)
