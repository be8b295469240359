"""Everything that `decide` reads beside the folded state, gathered by the holder of the session."""

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from holdfast.events import tool
from holdfast.events.budget import OverBudget
from holdfast.events.ids import Fence, RequestId, ToolCallId
from holdfast.events.inbox import InboxItem
from holdfast.events.message import Block
from holdfast.events.request import PermissionAsk
from holdfast.session.bounds import Bounds

MODEL: Final = "model"
"""The name of a running model call among the running activities; a running tool has the id of its call."""

COMPACTION: Final = "compaction"
"""The name of a compaction among the running activities."""

_Id = TypeVar("_Id", bound=str)


class CallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as its tool describes it, beyond the log."""

    where: Literal["here", "client", "person", "nowhere"]
    ask: PermissionAsk | None = None
    repeatable: bool = False
    error: str = ""
    """Why the call can't run, if `where` is `nowhere`."""
    error_code: tool.ToolError = "unknown_tool"
    error_origin: tool.Origin = "runtime"
    """The source of the error text: the runtime, or the tool's own code."""
    code: str = ""
    """The stable code of the error, if it has one."""
    question: str = ""
    choices: tuple[str, ...] = ()
    allow_freeform: bool = True


class InterruptedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A running call that was cancelled in order to end its turn."""

    has_ended: bool
    """False: the tool ignores its cancellation, or needs longer."""
    known: str = ""
    """The tool's own report of how it ended, or its result."""
    origin: tool.Origin = "tool"
    """The source of `known`."""


class Inputs(msgspec.Struct, kw_only=True):
    """One consistent view of the world outside the log. Ids and time are passed in, so that `decide` stays pure."""

    new_id: Callable[[], str]
    now: int
    bounds: Bounds
    inbox: tuple[InboxItem, ...] = ()
    shown: tuple[Block, ...] = ()
    """Blocks of the message in flight that were committed, so that readers may have seen them."""
    running: frozenset[str] = frozenset()
    facts: Mapping[ToolCallId, CallFacts] = {}
    interrupted: Mapping[ToolCallId, InterruptedCall] = {}
    """Calls that this holder cancelled in order to end the turn."""
    claims_without_progress: int = 0
    eligible: bool = True
    granted: frozenset[str] = frozenset()
    """Rules that hold now for the session's directory. A rule that was revoked since the log recorded it is missing."""
    readable: tuple[str, ...] = ()
    """Rules for paths that a session may always read: the output of its own commands."""
    backgrounded: frozenset[str] = frozenset()
    """Running calls that were already asked to go to the background, or no longer can; each call is asked once."""
    deciders: tuple[frozenset[RequestId], ...] = ()
    """For each attached client that can decide permissions, the requests that it declined."""
    denying: frozenset[RequestId] = frozenset()
    """Requests for which this holder has put a denial."""
    takeover: tuple[Fence, str] | None = None
    """The fence and node of a new claim that has written nothing yet."""

    prompt: str = ""
    """The digest of the prompt of this process, for sessions that have none yet."""
    prompt_tokens: int = 0
    """About how many tokens stand before the conversation."""
    window: int | None = None
    """The window of the session's model in tokens; None: nothing is compacted."""
    fallback: str | None = None
    """The model that is asked when the session's own can't be reached; None if there is none for this session."""
    over_budget: OverBudget | None = None
    """There is no money for the model call that was decided on: the turn ends."""
    owns_compaction: bool = False
    """This holder recorded the start of the compaction that is under way, and has not begun it yet."""

    @property
    def work(self) -> frozenset[str]:
        """The running activities that belong to the turn."""
        return self.running - {COMPACTION}

    def id_of(self, kind: Callable[[str], _Id]) -> _Id:
        """A new id of this kind."""
        return kind(self.new_id())
