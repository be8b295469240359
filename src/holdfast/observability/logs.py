"""Lines of the log, for people or for programs. Each carries what was being done, and none a secret that is known.

The code logs as any library does. Whoever runs it chooses: the commands of Holdfast use these formatters, and a
program that embeds it may, too.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import Final, Literal

import msgspec

from holdfast.events.codec import without_surrogates
from holdfast.observability.activity import current_activity
from holdfast.observability.secrets import without_secrets

LogFormat = Literal["text", "json"]
LogLevel = Literal["error", "warning", "info", "debug"]

LEVELS: Final[Mapping[LogLevel, int]] = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}

FIELDS: Final = "fields"
"""The attribute of a record with more to say than its message does: names and plain values."""

Value = str | int | float | bool | None

Hide = Callable[[str], str]


class LineFormatter(logging.Formatter):
    """What both formats have in common: nothing leaves here without having been looked through."""

    def __init__(self) -> None:
        super().__init__()
        self._hides: list[Hide] = [without_secrets]

    def hide(self, hide: Hide) -> None:
        """From now on lines also go through this, which knows more secrets."""
        self._hides.append(hide)

    def clean(self, text: str) -> str:
        for hide in self._hides:
            text = hide(text)
        cleaned: str = text if text.isascii() else without_surrogates(text)
        return cleaned

    def message_of(self, record: logging.LogRecord) -> str:
        return self.clean(record.getMessage())

    def trouble_of(self, record: logging.LogRecord) -> str:
        """The traceback, if there is one."""
        if record.exc_info and record.exc_info[0] is not None:
            return self.clean(self.formatException(record.exc_info))
        return self.clean(record.exc_text or "")

    def names_of(self, record: logging.LogRecord) -> dict[str, Value]:
        """What was being done, and what else the record has to say."""
        current = current_activity.get()
        names: dict[str, Value] = dict(current.named()) if current is not None else {}
        more: dict[str, Value] = getattr(record, FIELDS, {})
        for name, value in more.items():
            names[name] = self.clean(value) if isinstance(value, str) else value
        return names


class TextLineFormatter(LineFormatter):
    """A line for people; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{self.formatTime(record)} {record.process} {record.levelname} {record.name}: "
        names = " ".join(f"{name}={_in_one_line(str(value))}" for name, value in self.names_of(record).items())
        line = head + _in_one_line(self.message_of(record)) + (f" [{names}]" if names else "")
        trouble = self.trouble_of(record)
        return f"{line}\n{trouble}" if trouble else line


class JsonLineFormatter(LineFormatter):
    """One JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Value] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message_of(record),
            "process": record.process,
            **self.names_of(record),
        }
        if trouble := self.trouble_of(record):
            line["error"] = trouble
        return msgspec.json.encode(line).decode()


class RotatingFile(RotatingFileHandler):
    """A log that starts anew when it has become long. The one of the standard library makes every line twice, to see
    whether it still fits; here the last line of a file may be a little beyond its end."""

    def _open(self) -> TextIOWrapper:
        """For this user only, also the files that follow the first."""
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return open(descriptor, "a", encoding=self.encoding, errors=self.errors)

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802
        return self.stream is not None and os.fstat(self.stream.fileno()).st_size >= self.maxBytes


def line_formatter(kind: LogFormat) -> LineFormatter:
    return JsonLineFormatter() if kind == "json" else TextLineFormatter()


def hide_in_logs(hide: Hide) -> None:
    """Let every handler of this process that writes our lines hide what this knows."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LineFormatter):
            handler.formatter.hide(hide)


def _time_of(record: logging.LogRecord) -> str:
    """In UTC, to the millisecond."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _in_one_line(text: str) -> str:
    """Nobody outside can write a line of its own into the log, or move a terminal's cursor."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
