"""Events about compaction: a summary takes the place of the older part of a conversation in what the model is sent. The
log itself loses nothing."""

from typing import Literal

import msgspec

from holdfast.events.body import Body
from holdfast.events.ids import CompactionId, MessageId, Position

CompactionTrigger = Literal["threshold", "full", "too_long", "manual"]
"""Why a compaction started: the context has reached the size at which one is made beside the turn; it is nearly full,
and the turn waits; the provider refused the call as too long; or a person or a client asked for it."""

CompactionMethod = Literal["summary", "cut"]
"""What stands for the older part: a summary by a model, or only a note that it was left out."""

CompactionError = Literal["", "failed", "empty", "too_long", "nothing_to_compact", "cancelled", "rewound"]
"""Why no summary was made: the model failed, gave none, or gave one that is longer than what it should replace; nothing
could be left out; a person, a client or a stop cancelled it; or the conversation was rewound meanwhile."""


class CompactionStarted(Body, frozen=True, tag="session.compaction_start"):
    """A summary of the conversation up to `up_to` is about to be made. A later attempt at the same compaction follows
    if the process that made it died."""

    compaction_id: CompactionId
    trigger: CompactionTrigger
    up_to: Position
    attempt: int = 1
    instructions: str = ""
    """What to keep, in the words of the person who asked for it."""
    tokens: int = 0
    """The size of the context then, as far as it is known."""
    window: int = 0


class CompactionEnded(Body, frozen=True, tag="session.compaction_complete"):
    """A compaction is over. If it succeeded, the model is sent `summary` and the messages at `verbatim` in place of
    everything up to `up_to`, from the next call on."""

    compaction_id: CompactionId
    trigger: CompactionTrigger
    success: bool
    method: CompactionMethod = "summary"
    up_to: Position = Position(0)
    summary: str = ""
    verbatim: tuple[Position, ...] = ()
    """The positions of the messages of people that the model keeps word for word."""
    removed: int = 0
    """How many messages the model is no longer sent."""
    tokens_before: int = 0
    tokens_after: int = 0
    error: CompactionError = ""
    message: str = ""
    """The reason of a failure, for people."""
    model: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_microdollars: int | None = None
    attempt: int = 1
    """The attempt that it ended with; 0: none was made, because one had failed a moment ago."""
    duration_ms: int = 0
    prompt: str | None = None
    """The prompt that holds from now on, if it is another one: see `TurnStarted.prompt`."""

    @property
    def is_called(self) -> bool:
        """Whether a model was called, or may have been: a process that died left no name of it."""
        return self.attempt > 0 and (bool(self.model) or self.error in ("failed", "cancelled", "rewound"))


def call_of(compaction_id: CompactionId) -> MessageId:
    """The id of the model call of a compaction, in the ledger."""
    return MessageId(f"compaction:{compaction_id}")


class MessagePinned(Body, frozen=True, tag="holdfast.message_pinned"):
    """A person pinned a message of theirs: the model keeps it word for word, whatever is compacted. Or unpinned it."""

    message_id: MessageId
    pinned: bool
    position: Position
    content: str = ""
    """The message, for a model whose context has lost it; empty when it is unpinned."""


class CompactionSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When a session compacts; None for the server's setting."""

    enabled: bool = True
    """False: nothing is compacted unless somebody asks, or the provider refuses a call as too long."""
    start_percent: int | None = None
    """The percentage of the model's window at which a summary is made beside the turn."""
    wait_percent: int | None = None
    """The percentage at which the turn waits for it."""
