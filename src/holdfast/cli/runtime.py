"""A runtime on the configured database, and the log of the process that opens it."""

import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from holdfast.app import Runtime
from holdfast.cli.settings import DEBUG
from holdfast.config import Config
from holdfast.observability.logs import LEVELS, LogFormat, RotatingFile, hide_in_logs, line_formatter

LOG_BYTES: Final = 2_000_000
LOG_FILES: Final = 3
"""A process that runs for a year leaves no more than this many log files."""


@asynccontextmanager
async def open_runtime(config: Config, *, work: bool, grace_seconds: float = 0) -> AsyncIterator[Runtime]:
    """Open a runtime for one command. With `work` it also runs every session of the database that has work to do."""
    log_to_file(config)
    async with Runtime(config=config, work=work, role="command") as runtime:
        hide_in_logs(runtime.shell.desk.redaction.text)
        try:
            yield runtime
        finally:
            await runtime.close(grace_seconds=grace_seconds)


def log_to_file(config: Config) -> None:
    """Write the log beside the database. If the file can't be written, the command runs without a log."""
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
    _add_handler(handler, config, config.log_format or "text")


def log_service(config: Config) -> None:
    """Write the log of a server or worker where its settings say: to the file, or to stderr."""
    if config.log_to == "file":
        log_to_file(config)
    else:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        _add_handler(logging.StreamHandler(), config, config.log_format or ("text" if is_terminal else "json"))


def _add_handler(handler: logging.Handler, config: Config, log_format: LogFormat) -> None:
    handler.setFormatter(line_formatter(log_format))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if os.environ.get(DEBUG) == "1" else LEVELS[config.log_level])
