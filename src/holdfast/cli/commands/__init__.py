"""The table of commands. Each file beside it declares what can be typed about one noun: arguments, options, help.

`holdfast --help` imports none of those files; a command imports its own, and then the module that does its work.
"""

from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from holdfast.version import __version__

COMMANDS: Final = {
    "chat": ("chat", "Talk with an agent."),
    "run": ("run", "Send one message and print the answer."),
    "requests": ("requests", "Show all open requests in full."),
    "approve": ("requests", "Approve what a session asks for, from any terminal."),
    "deny": ("requests", "Deny what a session asks for, from any terminal."),
    "answer": ("requests", "Answer a question that a session asks, from any terminal."),
    "serve": ("serve", "Serve sessions over HTTP, and run them."),
    "worker": ("worker", "Run the sessions of a database that other processes serve."),
    "model-server": ("model_server", "Serve a scripted model over HTTP."),
    "doctor": ("doctor", "Check all that Holdfast needs."),
    "story": ("story", "Half a minute of crashes, with nothing lost."),
    "sessions": ("sessions", "List, show, continue, compact, move, delete, export and import sessions."),
    "tasks": ("tasks", "List, show, follow and kill the commands that sessions run."),
    "files": ("files", "Upload, list, download, keep and delete files."),
    "usage": ("usage", "Show what model calls used and cost."),
    "budgets": ("budgets", "Show, set and reset the budgets of owners."),
    "db": ("database", "Look at the database, migrate it and back it up."),
    "cluster": ("cluster", "See which processes work on a database, and what waits."),
    "keys": ("keys", "Make, list and revoke API keys for `holdfast serve`."),
    "whoami": ("whoami", "Show whose sessions these are, and what their owner uses of each quota."),
    "audit": ("audit", "Show what admins, keys and tokens did."),
    "permissions": ("permissions", "List and revoke permissions granted for always."),
    "webhooks": ("webhooks", "Send events to URLs, and see what was delivered."),
}
"""The file that declares each command, and the first sentence of its help."""


def load_command(name: str) -> Any:
    """Import the file that declares a command, and return the command for typer to run."""
    whole = typer.Typer(rich_markup_mode=None)
    whole.add_typer(import_module(f"{__name__}.{COMMANDS[name][0]}").app)
    return get_group(whole).commands[name]


class CommandTable(TyperGroup):
    """Lists the commands from the table, and loads the one that is typed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands.update({name: TyperCommand(name, help=summary) for name, (_, summary) in COMMANDS.items()})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name else None, rest


app = typer.Typer(
    name="holdfast",
    cls=CommandTable,
    help="Holdfast: a durable runtime for AI agents. Sessions survive the process that runs them.",
    epilog="\b\nA first look, without a key:  holdfast chat\nThe story of a crash:         holdfast story",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def holdfast(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
