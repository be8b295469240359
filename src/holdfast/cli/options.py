"""The options that commands share, each declared once: single options as annotations, and groups that belong together.

A command is parsed before the modules that do its work are imported, so nothing heavy is imported here.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from holdfast.cli.target import Target
    from holdfast.config import Config


def example(words: str) -> str:
    """The epilog of a command's help: one command line to copy."""
    return f"\b\nExample: holdfast {words}"


# Single options and arguments

AllowOption = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="RULE", help="Grant without asking, e.g. write or 'write(docs/*)'. Repeatable."),
]
DirOption = Annotated[
    str | None, typer.Option("--dir", help="The session's working directory; this folder if left out.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RedisOption = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help="Redis or Valkey, for hints between processes: redis://HOST:PORT."),
]
ContinueOption = Annotated[str | None, typer.Option("--session", metavar="ID", help="Continue this session.")]
OfSessionOption = Annotated[str | None, typer.Option("--session", metavar="ID", help="Only those of this session.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Its id, or the first 4 or more characters of it.")]

# Groups of options


class OptionGroup:
    """Options that a command takes together. Each annotated attribute is an option with its default."""

    def __init__(self, **given: object) -> None:
        self.__dict__.update(given)

    @classmethod
    @functools.cache
    def parameters(cls) -> dict[str, inspect.Parameter]:
        """The options of this group and of the groups it extends, the last base first."""
        kind = inspect.Parameter.KEYWORD_ONLY
        return {
            name: inspect.Parameter(name, kind, annotation=annotation, default=getattr(cls, name))
            for group in reversed(cls.__mro__)
            for name, annotation in inspect.get_annotations(group).items()
        }

    def settings(self) -> dict[str, object]:
        """The options by the names of the settings they set; None if not given."""
        return {name: getattr(self, name) for name in self.parameters()}

    def config(self, **more: object) -> "Config":
        from holdfast.cli.settings import load_settings

        return load_settings({**self.settings(), **more})


class DatabaseOptions(OptionGroup):
    """The database to use."""

    database: Annotated[
        str | None, typer.Option("--database", metavar="URL", help="sqlite:///PATH, or postgresql://USER@HOST/NAME.")
    ] = None
    data_dir: Annotated[str | None, typer.Option("--data-dir", help="The folder of the database and the log.")] = None


class DirectDatabaseOptions(DatabaseOptions):
    """The database to use, and the way past its pooler."""

    database_direct: Annotated[
        str | None,
        typer.Option("--database-direct", metavar="URL", help="PostgreSQL itself, where --database is a pooler."),
    ] = None


class TurnOptions(OptionGroup):
    """How a process runs turns: the model, and the sandbox of the commands."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="demo, anthropic/NAME, openai/NAME or openrouter/NAME; if left out, a key chooses.",
        ),
    ] = None
    model_base_url: Annotated[str | None, typer.Option("--model-base-url", help="The URL of the model's API.")] = None
    sandbox: Annotated[
        bool | None,
        typer.Option(
            "--sandbox/--no-sandbox", show_default=False, help="Run commands in a sandbox made by bubblewrap."
        ),
    ] = None
    sandbox_network: Annotated[
        str | None,
        typer.Option("--sandbox-network", metavar="on|off", help="Whether there is a network in the sandbox."),
    ] = None

    def settings(self) -> dict[str, object]:
        sandbox = None if self.sandbox is None else "bubblewrap" if self.sandbox else "none"
        return {**super().settings(), "sandbox": sandbox}


class RuntimeOptions(TurnOptions, DatabaseOptions):
    """A database, and how to run its turns."""


class ServerOptions(OptionGroup):
    """A server to use instead of a database."""

    url: Annotated[
        str | None,
        typer.Option("--url", help="Use a server (`holdfast serve`) instead of a database here; or set HOLDFAST_URL."),
    ] = None
    key: Annotated[
        str | None,
        typer.Option("--key", help="The key for the server. Better in HOLDFAST_KEY: other users see options in `ps`."),
    ] = None


class TargetOptions(DatabaseOptions, ServerOptions):
    """The target of a command: the sessions of a database, or those of a server."""

    def target(self) -> "Target":
        from holdfast.cli.target import find_target

        settings = {name: value for name, value in self.settings().items() if name not in ("url", "key")}
        return find_target(settings, url=self.url, key=self.key)


class TurnTargetOptions(TurnOptions, TargetOptions):
    """A target whose turns may run in this process, and then how."""


class ProcessOptions(OptionGroup):
    """How a server or worker works and logs."""

    redis: RedisOption = None
    max_sessions_per_process: Annotated[
        str | None, typer.Option("--concurrency", metavar="N", help="Run at most so many sessions at a time (200).")
    ] = None
    drain_seconds: Annotated[
        str | None,
        typer.Option("--drain-seconds", metavar="N", help="How long stopping may wait for steps to end (5)."),
    ] = None
    metrics_port: Annotated[
        str | None,
        typer.Option("--metrics-port", metavar="N", help="A separate port for /metrics, /healthz and /readyz."),
    ] = None
    log_to: Annotated[
        str | None, typer.Option("--log-to", metavar="file|stderr", help="Where the log goes (file).")
    ] = None
    log_format: Annotated[
        str | None, typer.Option("--log-format", metavar="text|json", help="How the log is written.")
    ] = None
    log_level: Annotated[
        str | None,
        typer.Option("--log-level", metavar="LEVEL", help="How much is logged: error, warning, info, debug."),
    ] = None


class ServiceOptions(TurnOptions, DirectDatabaseOptions, ProcessOptions):
    """A process that runs the sessions of a database until it is stopped."""


# From an async function to a command of typer


def command(work: Callable[..., Awaitable[int | None]]) -> Callable[..., NoReturn]:
    """Make a command of an async function. Its parameter `at`, an `OptionGroup`, becomes single options, listed after
    the others. Every error becomes a sentence and an exit status."""
    parameters = dict(inspect.signature(work).parameters)
    group: type[OptionGroup] = parameters.pop("at").annotation

    def run(**given: object) -> NoReturn:
        from holdfast.cli.process import run_to_end

        at = group(**{name: given.pop(name) for name in group.parameters()})
        raise typer.Exit(run_to_end(lambda: work(at, **given)))

    run.__name__, run.__doc__ = work.__name__, work.__doc__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*parameters.values(), *group.parameters().values()]
    )
    return run
