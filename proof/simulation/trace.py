"""The trace of a run: virtual time, actor and action, one line each, the same for the same seed."""

from collections.abc import Callable, Iterator

from holdfast.events.event import Event, type_of
from holdfast.store.store import Key


class Trace:
    """Recorded only for a reader: a seed can always be played again."""

    def __init__(self, *, is_kept: bool, now: Callable[[], float]) -> None:
        self.is_kept = is_kept
        self._now = now
        self._lines: list[str] = []

    def add(self, who: str, what: str, about: object = "") -> None:
        if self.is_kept:
            self._lines.append(f"{self._now():10.4f}  {who:<10} {what}{f' {about}' if about != '' else ''}")

    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)


def log_lines(key: Key, events: list[Event], writers: list[str]) -> Iterator[str]:
    """A session's log, with the writer and the fence of each event."""
    yield f"the log of {key.session}:"
    for event, writer in zip(events, writers, strict=True):
        yield f"{event.position:>6}  {writer:<12} {type_of(event.body):<28} {_said(event)}"


def _said(event: Event) -> str:
    fields = {name: getattr(event.body, name) for name in event.body.__struct_fields__}
    text = ", ".join(f"{name}={value!r}" for name, value in fields.items() if value not in ("", None, (), False, {}))
    return text if len(text) <= 200 else text[:199] + "…"
