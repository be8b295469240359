"""From options to an open runtime: settings, the log file, and one way out for every error."""

import io
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast import event_loop
from holdfast.app import Runtime, exposures, wants_redis
from holdfast.cli.errors import Refusal, report
from holdfast.config import Config, load
from holdfast.observability.logs import LEVELS, LogFormat, RotatingFile, hide_in_logs, line_formatter

LOG_BYTES: Final = 2_000_000
LOG_FILES: Final = 3
"""A process that runs for a year leaves no more than this many files behind."""

DEBUG: Final = "HOLDFAST_DEBUG"

WITHOUT_REDIS: Final = (
    "There is no Redis (HOLDFAST_REDIS): processes hear of each other through the database, which takes them longer."
)

log = logging.getLogger(__name__)


def settings(options: dict[str, object]) -> Config:
    """The settings of this process, with what is odd about them told on stderr."""
    environ = {name: value for name, value in os.environ.items() if name != DEBUG}
    config = load(options, environ)
    for warning in (*config.warnings, *exposures(config)):
        print(f"holdfast: {warning}", file=sys.stderr)
    return config


def checked_folder(given: str) -> Path:
    """The folder that a session works in, as the one name that everybody gives it."""
    folder = Path(given).expanduser().resolve()
    if not folder.is_dir():
        raise Refusal("folder_not_found", f"{folder} is not a folder. Name one that exists with --dir.")
    return folder


def run_to_end(work: Callable[[], Awaitable[int | None]]) -> int:
    """Run one command; the exit status. Nothing but its own words reaches the terminal."""
    logging.getLogger().addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a letter is no reason to fail
    try:
        code = event_loop.run(_awaited(work)) or 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return report(error)


async def _awaited(work: Callable[[], Awaitable[int | None]]) -> int | None:
    return await work()


@asynccontextmanager
async def opened(config: Config, *, work: bool, grace_seconds: float = 0) -> AsyncIterator[Runtime]:
    """A runtime on the configured database. With `work` it runs whatever waits to be run there."""
    log_to_file(config)
    async with Runtime(config=config, work=work, role="command") as runtime:
        hide_in_logs(runtime.shell.desk.redaction.text)
        try:
            yield runtime
        finally:
            await runtime.close(grace_seconds=grace_seconds)


def log_to_file(config: Config) -> None:
    """Write the log beside the database. A place that can't be written is no reason not to run."""
    root = logging.getLogger()
    if any(isinstance(handler, RotatingFile) for handler in root.handlers):
        return
    path = config.data_dir / "holdfast.log"
    try:
        config.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        handler = RotatingFile(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8")
    except OSError:
        return
    _add(handler, config, config.log_format or "text")


def warn_without_redis(config: Config) -> None:
    """A cluster works without Redis. Whoever starts one should know what it costs."""
    if wants_redis(config):
        log.warning("%s", WITHOUT_REDIS)
        print(f"holdfast: {WITHOUT_REDIS}", file=sys.stderr)


def log_of_server(config: Config) -> None:
    """Write the log of a process that people and programs watch where its settings say."""
    if config.log_to == "file":
        log_to_file(config)
    else:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        _add(logging.StreamHandler(), config, config.log_format or ("text" if is_terminal else "json"))


def _add(handler: logging.Handler, config: Config, kind: LogFormat) -> None:
    handler.setFormatter(line_formatter(kind))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if os.environ.get(DEBUG) == "1" else LEVELS[config.log_level])
