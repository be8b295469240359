"""A runtime on the configured database: how commands open one, how its process logs, when models are imported."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.app import Runtime, model_settings
from holdfast.cli.settings import DEBUG
from holdfast.config import Config
from holdfast.observability.logs import LEVELS, LogFormat, RotatingFile, hide_in_logs, line_formatter

if TYPE_CHECKING:
    from holdfast.models.http_model import HttpModel
    from holdfast.models.info import ModelInfo
    from holdfast.models.model import Model
    from holdfast.models.scripted import ScriptedModel

QUIET_SECONDS: Final = 1.0
"""Delay before the model libraries are imported, so that a process that lives only for one request never pays for
them."""

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


def open_configured_model(config: Config, name: str) -> "HttpModel | ScriptedModel":
    """Open a model, with the configured key and URL if they are for its provider. Raises `ModelNotUsable` if it could
    not be called."""
    from holdfast.models.catalogue import open_model  # deferred: HTTP takes a while to import

    key = config.model_api_key
    return open_model(
        name,
        configured=config.model,
        base_url=config.model_base_url,
        api_key=key.reveal() if key else None,
        environ=os.environ,
        settings=model_settings(config),
    )


def known_info(config: Config, name: str) -> "ModelInfo | None":
    """The facts about a model; None if this process can't use it: another one may have its key, and its address."""
    from holdfast.models.errors import ModelNotUsable

    try:
        return open_configured_model(config, name).info
    except ModelNotUsable:
        return None


def check_thinking(config: Config) -> None:
    """Raises `ModelNotUsable` if sessions should think with a model that can't. It makes no call."""
    for name in filter(None, (config.model, config.model_advanced)):
        if not config.thinking or name == "demo":
            continue
        from holdfast.models.errors import ModelKeyMissing, ModelNotUsable

        try:
            model = open_configured_model(config, name)
        except ModelKeyMissing:
            continue  # Another process has the key, and runs the sessions.
        if not model.info.takes_thinking:
            raise ModelNotUsable(
                f"HOLDFAST_THINKING is {config.thinking}, but the model {name} does not think: unset it, or choose "
                f"another model."
            )


def demo_or_none(config: Config) -> "Model | None":
    """The demo model, which opens without importing the provider libraries; None for every other model."""
    if config.model != "demo":
        return None
    from holdfast.models.demo import demo_model

    return demo_model()


async def import_models_later() -> None:
    """Import the provider libraries in the background, before the first model call needs them."""
    await asyncio.sleep(QUIET_SECONDS)
    await asyncio.to_thread(import_module, "holdfast.models.catalogue")


def log_to_file(config: Config) -> None:
    """Write the log beside the database. If the file can't be written, the command runs without a log."""
    root = logging.getLogger()
    if any(isinstance(handler, RotatingFile) for handler in root.handlers):
        return
    handler = rotating_file(config.data_dir / "holdfast.log")
    if handler is not None:
        _add_handler(handler, config, config.log_format or "text")


def rotating_file(path: Path) -> RotatingFile | None:
    """A log file for this user only; None if it can't be written."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        return RotatingFile(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8")
    except OSError:
        return None


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
