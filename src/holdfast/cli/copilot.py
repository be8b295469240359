"""`holdfast-copilot`: the runtime that Copilot SDK clients start over stdio, or connect to over TCP.

The client that starts this process waits for its first answer, so a module is imported only once it is needed.
"""

import argparse
import asyncio
import logging
import os
import signal
import stat
import sys
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.app import Runtime
    from holdfast.config import Config
    from holdfast.observability.logs import LogFormat
    from holdfast.server.copilot.listener import CopilotListener
    from holdfast.server.copilot.peer import Handler, Peer

log = logging.getLogger(__name__)

CONNECTION_TOKEN: Final = "COPILOT_CONNECTION_TOKEN"
HOME: Final = "COPILOT_HOME"
ON_LAST_DISCONNECT: Final = "HOLDFAST_ON_LAST_DISCONNECT"
WHEN_ALL_HAVE_LEFT: Final = ("keep", "close")
TASK_WAIT: Final = "COPILOT_TASK_WAIT_TIMEOUT_SECONDS"
DEFAULT_TASK_WAIT_SECONDS: Final = 600.0
MAX_TASK_WAIT_SECONDS: Final = 86_400.0

LOOPBACK: Final = "localhost"
LOOPBACKS: Final = (LOOPBACK, "127.0.0.1", "::1")

FAREWELL_SECONDS: Final = 0.05
"""Pause between the answer to `runtime.shutdown` and the exit: the client's two threads race when both arrive
together."""

LOG_LEVELS: Final[dict[str, int | None]] = {
    "none": None,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "all": logging.DEBUG,
}

HELP: Final = """\
The Holdfast runtime for the GitHub Copilot SDK. Point a client at it and its sessions survive crashes:

  CopilotClient(connection=RuntimeConnection.for_stdio(path="holdfast-copilot"))      the client starts it itself
  holdfast-copilot --port 8123                                                        a server for many clients
  CopilotClient(connection=RuntimeConnection.for_uri("localhost:8123"))               one of them

Without --stdio it listens on the loopback addresses and prints the port. Clients must show COPILOT_CONNECTION_TOKEN
if that is set; on any other address it has to be. Sessions are kept in $COPILOT_HOME/holdfast.db (COPILOT_HOME is
~/.copilot by default), the log in $COPILOT_HOME/logs. Every setting of Holdfast (HOLDFAST_MODEL, ...) applies."""


class RpcSurface(Protocol):
    """The surface that answers the requests of every connection of this process."""

    def connected(self, peer: "Peer") -> "Handler":
        """Return the handler for a connection that passed the gate."""

    async def close(self) -> None:
        """Release what the surface holds for its connections. Connections may still be open; they are closed later."""


RpcSurfaceFactory = Callable[["Runtime", argparse.Namespace, Mapping[str, str]], RpcSurface]


def _surface(runtime: "Runtime", options: argparse.Namespace, environ: Mapping[str, str]) -> RpcSurface:
    from holdfast.server.copilot.model_names import ModelNames
    from holdfast.server.copilot.service import CopilotService, CopilotSettings
    from holdfast.server.copilot.surface import Surface

    async def listed() -> list[dict[str, Any]]:
        return await runtime.models.list_models() if environ.get("COPILOT_API_URL", "").strip() else []

    settings = CopilotSettings(
        home=_home(environ),
        directory=Path.cwd(),
        owner=runtime.owner,
        built_in=runtime.tool_names,
        instructions=runtime.instructions,
        on_last_disconnect=options.on_last_disconnect,
        token_given=bool(environ.get(options.auth_token_env or "")),
        max_woken_turns=runtime.config.bounds.max_woken_turns,
        task_wait_seconds=_task_wait_seconds(environ),
    )
    return Surface(
        CopilotService(
            operations=runtime.operations,
            tasks=runtime.task_operations,
            shell=runtime.shell,
            clock=runtime.clock,
            settings=settings,
            models=ModelNames(runtime.config.model, listed),
            credentials=runtime.credentials,
            observer=runtime.observer,
        )
    )


def _task_wait_seconds(environ: Mapping[str, str]) -> float:
    """The timeout from the variable that GitHub's runtime reads too. An invalid or out-of-range value means the
    default."""
    try:
        seconds = float(environ.get(TASK_WAIT, ""))
    except ValueError:
        return DEFAULT_TASK_WAIT_SECONDS
    return seconds if 0 < seconds <= MAX_TASK_WAIT_SECONDS else DEFAULT_TASK_WAIT_SECONDS


def main() -> int:
    return run(sys.argv[1:], os.environ, _surface)


def run(arguments: list[str], environ: MutableMapping[str, str], surface_factory: RpcSurfaceFactory) -> int:
    """Run the command line and return the exit code."""
    _open_closed_standard_streams()
    logging.getLogger().addHandler(logging.NullHandler())  # nothing is logged until the log file is open
    try:
        options = _parsed(arguments, environ)
        full_environ = dict(environ)
        # Child processes inherit `environ`. With these tokens they could connect and answer in a person's name.
        for name in {CONNECTION_TOKEN, options.auth_token_env} & set(environ):
            del environ[name]
        return _serve(options, full_environ, surface_factory)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        from holdfast.cli.errors import report

        log.error("Ended by an error", exc_info=error)
        return report(error)


def _open_closed_standard_streams() -> None:
    """Open /dev/null under each of 0, 1 and 2 that is closed; otherwise the database's file could get that number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


# The command line


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one line: the client that starts this process quotes it to a person."""
        print(f"holdfast-copilot: {message}. See holdfast-copilot --help. [usage]", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> _Parser:
    parser = _Parser(
        prog="holdfast-copilot",
        usage="holdfast-copilot [--stdio | --port N] [options]",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"holdfast-copilot {__version__}")
    where = parser.add_argument_group("where clients connect").add_argument
    where("--stdio", action="store_true", help="serve the process that started this one, over its pipes")
    where("--port", type=_port, default=0, metavar="N", help="the TCP port; 0, the default, takes a free one")
    where("--host", default=LOOPBACK, help="the address to listen on (default: both loopback addresses)")
    what = parser.add_argument_group("what it runs").add_argument
    what("--database", metavar="URL", help="sqlite:///PATH, or postgresql://USER@HOST/NAME")
    what("--data-dir", metavar="DIR", help="where the database is kept instead of $COPILOT_HOME")
    what("--redis", metavar="URL", help="Redis or Valkey, for hints between processes: redis://HOST:PORT")
    what("--model", metavar="NAME", help="the model of sessions that name none")
    what("--model-base-url", metavar="URL", help="where that model's API is, if not at its provider")
    what(
        "--on-last-disconnect",
        choices=WHEN_ALL_HAVE_LEFT,
        help=f"what becomes of a session that its last client leaves (default: keep; also {ON_LAST_DISCONNECT})",
    )
    what("--log-level", choices=LOG_LEVELS, help="how much the log tells (default: info)")
    what("--log-format", choices=("text", "json"), help="of the log (default: text)")
    sdk = parser.add_argument_group("what clients add by themselves").add_argument
    sdk("--auth-token-env", metavar="NAME", help="the variable that holds the client's token for the model")
    sdk("--session-idle-timeout", type=float, metavar="SECONDS", help=argparse.SUPPRESS)
    for flag in ("--headless", "--no-auto-update", "--no-auto-login", "--remote"):
        sdk(flag, action="store_true", help=argparse.SUPPRESS)
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a port: 0 to 65535")
    return int(text)


def _parsed(arguments: list[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """The options; `unknown` holds flags of newer clients, which are ignored so that those clients are still served."""
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    options.unknown = unknown
    if unknown and not unknown[0].startswith("-"):
        parser.error(f"{unknown[0][:40]!r} is not an argument of this command")
    if options.on_last_disconnect is None:
        options.on_last_disconnect = environ.get(ON_LAST_DISCONNECT) or WHEN_ALL_HAVE_LEFT[0]
        if options.on_last_disconnect not in WHEN_ALL_HAVE_LEFT:
            parser.error(f"{ON_LAST_DISCONNECT} must be one of {', '.join(WHEN_ALL_HAVE_LEFT)}")
    if not options.stdio and options.host not in LOOPBACKS and not environ.get(CONNECTION_TOKEN):
        parser.error(f"--host {options.host[:80]} is open to other machines, so {CONNECTION_TOKEN} must be set")
    return options


# Configuration and log


def _config(options: argparse.Namespace, environ: Mapping[str, str], home: Path) -> "Config":
    from holdfast.cli.settings import DEBUG
    from holdfast.config import load

    keeps_elsewhere = options.data_dir is not None or environ.get("HOLDFAST_DATA_DIR", "").strip()
    settings = {
        "data_dir": options.data_dir if keeps_elsewhere else home,
        "database": options.database,
        "redis": options.redis,
        "model": options.model,
        "model_base_url": options.model_base_url,
        "log_format": options.log_format,
    }
    return load(settings, {name: value for name, value in environ.items() if name not in (DEBUG, CONNECTION_TOKEN)})


def _home(environ: Mapping[str, str]) -> Path:
    try:
        return Path(environ.get(HOME) or "~/.copilot").expanduser().absolute()
    except RuntimeError:
        from holdfast.config import ConfigError

        raise ConfigError(HOME, "has no default, because this user has no home", allowed="a path") from None


def _log_to_file(folder: Path, level: int | None, kind: "LogFormat") -> None:
    """Log only to a file in this folder: over TCP no client reads stdout or stderr. Without a writable file, run
    unlogged."""
    from holdfast.cli.runtime import rotating_file
    from holdfast.observability.logs import line_formatter

    if level is None:
        logging.disable()
        return
    with suppress(OSError):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = rotating_file(folder / "holdfast-copilot.log")
    if handler is not None:
        handler.setFormatter(line_formatter(kind))
        logging.getLogger().addHandler(handler)
        logging.getLogger().setLevel(level)


# Serving


def _serve(options: argparse.Namespace, environ: Mapping[str, str], surface_factory: RpcSurfaceFactory) -> int:
    home = _home(environ)
    config = _config(options, environ, home)
    _log_to_file(home / "logs", LOG_LEVELS[options.log_level or config.log_level], config.log_format or "text")
    for word in options.unknown:
        log.info("Not known here, and ignored: %s", word.partition("=")[0])
    for warning in config.warnings:
        log.warning("%s", warning)
    from holdfast import event_loop
    from holdfast.app import wants_redis
    from holdfast.cli.settings import WITHOUT_REDIS
    from holdfast.cli.telemetry import span_export

    if wants_redis(config):
        log.warning("%s", WITHOUT_REDIS)
    with span_export("holdfast-copilot", environ):
        return event_loop.run(_Process(options, environ, config).serve(surface_factory))


class _Process:
    """The lifecycle of this process: open the runtime, serve, close. Every cause of exit takes the same path."""

    def __init__(self, options: argparse.Namespace, environ: Mapping[str, str], config: "Config") -> None:
        self._options = options
        self._environ = environ
        self._config = config
        self._stop = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._runtime: Runtime
        self._surface: RpcSurface
        self._listener: CopilotListener

    async def serve(self, surface_factory: RpcSurfaceFactory) -> int:
        from holdfast.app import Runtime
        from holdfast.cli.process import until_stopped
        from holdfast.cli.runtime import demo_or_none, import_models_later
        from holdfast.observability.logs import hide_in_logs
        from holdfast.server.copilot.gate import Terms
        from holdfast.server.copilot.listener import CopilotListener, take_standard_streams

        streams = take_standard_streams() if self._options.stdio else None
        loop = asyncio.get_running_loop()
        # Not `loop.add_signal_handler`, which the loop removes when it closes: clients send SIGTERM to a runtime that
        # is already stopping.
        signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(self._stop.set))
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        async with Runtime(
            config=self._config,
            model=demo_or_none(self._config),
            environ=_with_token(self._options, self._environ),
            role="copilot",
        ) as self._runtime:
            hide_in_logs(self._runtime.shell.desk.redaction.text)
            self._surface = surface_factory(self._runtime, self._options, self._environ)
            terms = Terms(connected=self._surface.connected, version=__version__, shut_down=self._shut_down)
            self._listener = CopilotListener(terms)
            if streams is None:
                await self._listen()
            else:
                peer = await self._listener.attach(*streams)
                gone = asyncio.create_task(peer.finished())
                gone.add_done_callback(lambda _: self._stop.set())
            importing = asyncio.create_task(import_models_later())
            try:
                await until_stopped(self._stop, self._runtime)
            finally:
                importing.cancel()
            await self._listener.close()
            await self._close_once()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return 0

    async def _listen(self) -> None:
        host, port = self._options.host, self._options.port
        try:
            port = await self._listener.listen(host, port, token=self._environ.get(CONNECTION_TOKEN) or None)
        except OSError as error:
            from holdfast.cli.errors import address_refusal

            raise address_refusal(error, purpose="listen", host=host, port=port) from None
        print(f"CLI server listening on port {port}", flush=True)
        _silence_standard_streams()

    def _interrupted(self) -> None:
        """Stop in an orderly way on the first Ctrl-C; a second one ends the process at once."""
        self._stop.set()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    async def _shut_down(self) -> None:
        """Handle a client's `runtime.shutdown`: answer once everything is closed, then end the process."""
        self._listener.stop_accepting()
        try:
            await self._close_once()
        finally:
            asyncio.get_running_loop().call_later(FAREWELL_SECONDS, self._stop.set)

    async def _close_once(self) -> None:
        """Close everything exactly once, and finish even if the caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_all())
        await asyncio.shield(self._closing)

    async def _close_all(self) -> None:
        try:
            await self._surface.close()
        finally:
            await self._runtime.close()


def _with_token(options: argparse.Namespace, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with the client's token under the name that models read."""
    token = environ.get(options.auth_token_env or "", "")
    return {**environ, "COPILOT_SDK_AUTH_TOKEN": token} if token else environ


def _silence_standard_streams() -> None:
    """Redirect output to /dev/null after the port line: clients stop reading there, and a full pipe would block us."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    if stat.S_ISFIFO(os.fstat(2).st_mode):
        os.dup2(nothing, 2)
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
