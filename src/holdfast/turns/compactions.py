"""The compactions of a held session, beside its turns (`session/compaction.py` decides them)."""

from collections.abc import Callable

from holdfast.events.compaction import CompactionStarted, call_of
from holdfast.events.ids import CompactionId
from holdfast.session.actions import Append
from holdfast.session.inputs import COMPACTION, Inputs
from holdfast.session.state import Compaction
from holdfast.turns.activities import Activities
from holdfast.turns.call_context import CallContext
from holdfast.turns.held_session import HeldSession
from holdfast.turns.status import Wait
from holdfast.turns.summary import summarise


class Compactions:
    """Runs the compactions whose start this holder recorded, and tells readers when the turn waits for one."""

    def __init__(self, session: HeldSession, context: CallContext, activities: Activities) -> None:
        self._session = session
        self._context = context
        self._activities = activities
        self._started: tuple[CompactionId, int] | None = None
        """The compaction, and its attempt, whose start this holder recorded and that it has not begun yet."""
        self._wait: Wait | None = None

    def note_started(self, append: Append) -> None:
        """Note a start that was committed."""
        for body in append.events:
            if isinstance(body, CompactionStarted):
                self._started = (body.compaction_id, body.attempt)

    def owns(self, current: Compaction | None) -> bool:
        """Whether this holder recorded the start and is to make the summary."""
        return current is not None and self._started == (current.compaction_id, current.attempt)

    async def start(self, current: Compaction, inputs: Callable[[], Inputs]) -> None:
        """Start to make the summary, beside the loop."""
        self._started = None
        model, window = await self._context.summary_model()
        call = (call_of(current.compaction_id), current.attempt)
        work = summarise(
            self._session,
            current,
            model,
            model_window=window,
            inputs=inputs,
            reserve=lambda request: self._context.reserve_beside(call, model, request),
        )
        self._activities.start(COMPACTION, work)

    async def drop_stale(self) -> None:
        """End the making of a summary that was given up, or whose part of the conversation was rewound."""
        if COMPACTION in self._activities.running and self._session.state.compaction is None:
            await self._activities.cancel_one(COMPACTION)

    def follow_wait(self, *, pauses: bool) -> None:
        """Tell readers that the turn waits, for as long as nothing but the compaction runs and the loop pauses."""
        compaction = self._session.state.compaction
        if self._activities.running != {COMPACTION} or compaction is None or self._session.state.turn is None:
            self.end_wait()
        elif pauses and self._wait is None:
            self._wait = Wait(self._session, "compaction", attempt=compaction.attempt).__enter__()

    def end_wait(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.__exit__(None, None, None)
