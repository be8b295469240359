"""What a turn waits for while nothing comes, in one line of a terminal. The line is replaced, and never kept."""

import sys
from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.cli.transcript import one_line
from holdfast.events.event import Event
from holdfast.live.live import Delta, Progress, WaitStatus
from holdfast.protocol.reading import Connection, Reading

STALE_SECONDS: Final = 130.0
"""Statuses come at least every minute. Without a newer one for this long, the process that waited may be gone."""

MAX_CHARACTERS: Final = 78

_REASONS: Final = {
    "model_context_exceeded": "the conversation was too long for it",
    "model_cut": "the answer broke off",
    "model_garbage": "the answer could not be read",
    "model_rate_limited": "its provider limits the rate of calls",
    "model_timeout": "it did not answer in time",
    "model_unavailable": "it was unavailable",
    "model_unreachable": "it could not be reached",
}


class WaitLine(msgspec.Struct, frozen=True):
    """A status and when it was heard, by this process's own clock."""

    status: WaitStatus
    heard_at: float

    def text(self, now: float, tools: Mapping[str, str]) -> str:
        """The line; empty if the status is stale. `tools` has the names of running tools by the ids of their calls."""
        if now - self.heard_at > STALE_SECONDS:
            return ""
        status = self.status
        seconds = status.seconds + int(max(0.0, now - self.heard_at))
        match status.awaits:
            case "model":
                return f"waiting for the model, {_time(seconds)}{_again(status)}"
            case "answer":
                return f"waiting for the rest of the answer, {_time(seconds)}{_again(status)}"
            case "retry":
                left = ((status.until or 0) - status.since) // 1000 - seconds
                when = f"in {_time(left)}" if left > 0 else "now"
                return f"calling the model again {when}{_again(status)}"
            case "tool":
                name = one_line(tools.get(status.tool_call_id, "a tool"), 30)
                attempt = f" · attempt {status.attempt}" if status.attempt > 1 else ""
                return f"waiting for {name}, {_time(seconds)}{attempt}"
            case "compaction":
                return f"waiting for a summary of the conversation, {_time(seconds)}{_again(status)}"


def after(line: WaitLine | None, reading: Reading, now: float) -> WaitLine | None:
    """The line after a reading: the newest status, until anything comes."""
    match reading:
        case WaitStatus():
            return WaitLine(reading, now)
        case Event() | Delta() | Progress() | Connection():
            return None
        case _:
            return line


class LastLine:
    """The last line of a terminal's output, which shows the wait. Everything else erases it first."""

    def __init__(self, *, color: bool) -> None:
        self._color = color
        self._is_shown = False

    def show(self, status: WaitStatus, tools: Mapping[str, str]) -> None:
        text = one_line(f"· {WaitLine(status, 0.0).text(0.0, tools)}", MAX_CHARACTERS)
        self.erase()
        sys.stdout.write(f"\x1b[2m{text}\x1b[0m" if self._color else text)
        sys.stdout.flush()
        self._is_shown = True

    def erase(self) -> None:
        if self._is_shown:
            sys.stdout.write("\r\x1b[2K")
            sys.stdout.flush()
            self._is_shown = False


def _time(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s"


def _again(status: WaitStatus) -> str:
    attempt = f" · attempt {status.attempt}" if status.attempt > 1 else ""
    why = _REASONS.get(status.reason)
    return f"{attempt} · {why}" if why else attempt
