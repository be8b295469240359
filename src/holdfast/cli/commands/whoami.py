"""`holdfast whoami`."""

import typer

from holdfast.cli.options import JsonOption, TargetOptions, command, example

app = typer.Typer()


@app.command(epilog=example("whoami --json"))
@command
async def whoami(at: TargetOptions, *, as_json: JsonOption = False) -> None:
    """Show whose sessions these are, and what their owner uses of each quota."""
    from holdfast.cli.whoami import show_identity

    await show_identity(at.target(), as_json=as_json)
