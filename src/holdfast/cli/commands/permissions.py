"""`holdfast permissions`."""

from typing import Annotated

import typer

from holdfast.cli.options import IdArgument, JsonOption, TargetOptions, command, example

app = typer.Typer(
    name="permissions",
    help="List and revoke permissions granted for always.",
    epilog=example("permissions revoke 3f2a9c1b"),
    no_args_is_help=True,
)

SessionOption = Annotated[str | None, typer.Option("--session", metavar="ID", help="The permissions of this session.")]


@app.command("list", epilog=example("permissions list --json"))
@command
async def list_permissions(at: TargetOptions, *, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """List the permissions granted for always. Shows when, by which person and in which session."""
    from holdfast.cli import permissions

    await permissions.list_permissions(at.target(), session, as_json=as_json)


@app.command("revoke", epilog=example("permissions revoke 3f2a9c1b"))
@command
async def revoke_permission(at: TargetOptions, *, permission: IdArgument, session: SessionOption = None) -> None:
    """Revoke a permission granted for always. With --session, one granted for that session."""
    from holdfast.cli import permissions

    await permissions.revoke_permission(at.target(), permission, session)
