"""Log formatters, as text for people or as JSON for programs. Each line carries the activity of its task, and known
secrets are redacted from every line.

The package itself logs through the standard library, as any library does. The commands of Holdfast install these
formatters; a program that embeds it may use them too.
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
"""The attribute of a log record that carries more fields besides the message: names and plain values."""

Value = str | int | float | bool | None

Hide = Callable[[str], str]


class LineFormatter(logging.Formatter):
    """The common part of both formats: every text passes the redactors before it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._hides: list[Hide] = [without_secrets]

    def hide(self, hide: Hide) -> None:
        """Add a redactor that knows more secrets; it applies to every later line."""
        self._hides.append(hide)

    def clean(self, text: str) -> str:
        for hide in self._hides:
            text = hide(text)
        cleaned: str = text if text.isascii() else without_surrogates(text)
        return cleaned

    def message_of(self, record: logging.LogRecord) -> str:
        return self.clean(record.getMessage())

    def traceback_of(self, record: logging.LogRecord) -> str:
        """The traceback, or the empty string."""
        if record.exc_info and record.exc_info[0] is not None:
            return self.clean(self.formatException(record.exc_info))
        return self.clean(record.exc_text or "")

    def fields_of(self, record: logging.LogRecord) -> dict[str, Value]:
        """The ids of the current activity, and the record's own `FIELDS`."""
        current = current_activity.get()
        fields: dict[str, Value] = dict(current.fields()) if current is not None else {}
        more: dict[str, Value] = getattr(record, FIELDS, {})
        for name, value in more.items():
            fields[name] = self.clean(value) if isinstance(value, str) else value
        return fields


class TextLineFormatter(LineFormatter):
    """A line for people; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{self.formatTime(record)} {record.process} {record.levelname} {record.name}: "
        fields = " ".join(f"{name}={_in_one_line(str(value))}" for name, value in self.fields_of(record).items())
        line = head + _in_one_line(self.message_of(record)) + (f" [{fields}]" if fields else "")
        traceback = self.traceback_of(record)
        return f"{line}\n{traceback}" if traceback else line


class JsonLineFormatter(LineFormatter):
    """One JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Value] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message_of(record),
            "process": record.process,
            **self.fields_of(record),
        }
        if traceback := self.traceback_of(record):
            line["error"] = traceback
        return msgspec.json.encode(line).decode()


class RotatingFile(RotatingFileHandler):
    """A log file that is rotated once it reaches its maximum size. The standard library's handler formats every line
    twice, to check that it still fits; this one does not, so the last line may exceed the maximum a little."""

    def _open(self) -> TextIOWrapper:
        """Open with mode 0600, also after each rotation: only this user may read the log."""
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return open(descriptor, "a", encoding=self.encoding, errors=self.errors)

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802
        return self.stream is not None and os.fstat(self.stream.fileno()).st_size >= self.maxBytes


def line_formatter(kind: LogFormat) -> LineFormatter:
    return JsonLineFormatter() if kind == "json" else TextLineFormatter()


def hide_in_logs(hide: Hide) -> None:
    """Add the redactor to every log handler of this process that uses a `LineFormatter`."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LineFormatter):
            handler.formatter.hide(hide)


def _time_of(record: logging.LogRecord) -> str:
    """The record's time in UTC, to the millisecond."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _in_one_line(text: str) -> str:
    """The text with control characters escaped, so that logged input can neither forge a line nor move a terminal's
    cursor."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
