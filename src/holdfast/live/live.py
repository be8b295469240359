"""The seam for hints: what has just been committed, sent to the subscribers.

A hint is published only after its content is durable. Any hint may be late, lost or duplicated: a reader that misses
one repairs it from the store, so losing them all costs latency and nothing else.
"""

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import Key, MessageId, Position, ToolCallId
from holdfast.events.message import BlockKind


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """Text of a message in flight. `offset` and the text's length are bytes of UTF-8."""

    message_id: MessageId
    block: int
    kind: BlockKind
    offset: int
    text: str
    tool_call_id: str = ""
    name: str = ""


class Grown(msgspec.Struct, frozen=True):
    """More of the message in flight was committed. A reader can append it if it has the log up to `head` and the
    message up to byte `follows[1]` of block `follows[0]`; otherwise the reader missed something in between."""

    head: Position
    follows: tuple[int, int]
    deltas: tuple[Delta, ...]


class Advanced(msgspec.Struct, frozen=True):
    """These events were committed, at consecutive positions."""

    events: tuple[Event, ...]


class Progress(msgspec.Struct, frozen=True):
    """A line of progress from a running tool. It is not stored."""

    tool_call_id: ToolCallId
    text: str


Awaited = Literal["model", "answer", "retry", "tool", "compaction"]
"""`model`: the beginning of an answer. `answer`: the rest of an answer whose model has gone silent. `retry`: the next
attempt at a model call, which is due later. `tool`: a tool call that runs. `compaction`: the summary without which the
turn can't go on."""


class WaitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing came for `seconds`: what the turn waits for. It is not stored."""

    awaits: Awaited
    seconds: int
    since: int
    """When the silence began, in milliseconds since 1970, by the clock of the process that waits."""
    attempt: int = 1
    tool_call_id: str = ""
    reason: str = ""
    """The error code of the model call's last attempt, if that failed."""
    until: int | None = None
    """When the next attempt of a `retry` is due, by the clock of `since`."""


class Changed(msgspec.Struct, frozen=True):
    """The inbox changed: an item was put, edited, removed or promoted."""

    tail: int | None = None
    """The tail of the inbox, if an item was put."""
    promoted: bool = False
    """The holder promoted an item: readers show it, but no worker has new work."""
    queue: bool = False
    """Queued messages were edited, reordered or removed, by a person or by a stop."""


class Lost(msgspec.Struct, frozen=True):
    """Catch up from the store: hints were dropped because this subscriber was slow, or another process wrote."""


Hint = Grown | Advanced | Progress | WaitStatus | Changed | Lost


class Subscription(Protocol):
    """The hints of one session for one subscriber, in a bounded queue."""

    async def next(self) -> Hint: ...

    def close(self) -> None: ...


Listener = Callable[[Key | None, int | None], None]
"""Called with the session whose inbox changed, or None for any session, and with its tail if an item was put."""


class Live(Protocol):
    """Publishes hints and delivers them to subscribers."""

    def publish(self, key: Key, hint: Hint) -> None: ...

    def subscribe(self, key: Key) -> Subscription: ...

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the key and the tail of each session whose inbox changed other than by a promotion, or
        with None if any session may have changed. Returns a function that removes the listener."""
        ...

    def watch(self, watcher: Callable[[Key, Hint], None]) -> Callable[[], None]:
        """Call `watcher` with every hint that this process publishes. Returns a function that removes the watcher."""
        ...

    def announce(self) -> None:
        """Wake the workers because an item is being put: a claim that they submit now runs right after the put."""
        ...

    def lose_all(self) -> None:
        """Send every subscriber `Lost` and wake every listener: hints may have been missed."""
        ...

    def others_wrote(self) -> bool:
        """Report that another process committed something. Returns False if its hints arrive another way, so that the
        subscribers need not read the store right now."""
        ...

    def listening(self) -> bool:
        """Whether any session has a subscriber."""
        ...
