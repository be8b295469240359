"""The seam for hints: what has just been committed, sent to whoever listens.

A hint is published only after what it tells is durable. Any hint may be late, lost or doubled: a reader that misses
one repairs it from the store, so losing them all costs latency and nothing else.
"""

from collections.abc import Callable
from typing import Protocol

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
    """More of the message in flight was committed. It fits on what a reader has if that has the log up to `head`, and
    the message up to the byte `follows[1]` of the block `follows[0]`; else something in between was missed."""

    head: Position
    follows: tuple[int, int]
    deltas: tuple[Delta, ...]


class Advanced(msgspec.Struct, frozen=True):
    """These events were committed, one after the other."""

    events: tuple[Event, ...]


class Progress(msgspec.Struct, frozen=True):
    """A tool that runs said something. Not kept."""

    tool_call_id: ToolCallId
    text: str


class Changed(msgspec.Struct, frozen=True):
    """The inbox is no longer what it was: something was put, edited, removed or promoted."""

    tail: int | None = None
    """How far the inbox reaches now, if something was put."""
    promoted: bool = False
    """The holder itself took something out: news for readers, but nobody has more to do than before."""
    queue: bool = False
    """Somebody edited, reordered or removed messages that wait, or a stop took them out."""


class Lost(msgspec.Struct, frozen=True):
    """Hints were dropped because this subscriber was slow, or another process wrote: catch up from the store."""


Hint = Grown | Advanced | Progress | Changed | Lost


class Subscription(Protocol):
    """One listener. It holds at most a bounded number of hints."""

    async def next(self) -> Hint: ...

    def close(self) -> None: ...


Listener = Callable[[Key | None, int | None], None]


class Live(Protocol):
    def publish(self, key: Key, hint: Hint) -> None: ...

    def subscribe(self, key: Key) -> Subscription: ...

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the key of each session whose inbox changed (other than by a promotion) and its tail,
        or with None when it may have been any. Gives back how to end it."""
        ...

    def watch(self, watcher: Callable[[Key, Hint], None]) -> Callable[[], None]:
        """Call `watcher` with every hint of every session that is published here. Gives back how to end it."""
        ...

    def announce(self) -> None:
        """Something is being put: a claim that is handed in now is right behind it."""
        ...

    def lose_all(self) -> None:
        """Tell every subscriber and listener to look at the store: hints may have been missed."""
        ...

    def others_wrote(self) -> bool:
        """Another process committed something. False: its hints come by another way, and who listens here need not
        look at the store right now."""
        ...

    def listening(self) -> bool:
        """Whether anybody subscribes to anything."""
        ...
