"""The status of a wait: while nothing comes, readers learn what the turn waits for, for how long, at which attempt.

A status is a hint and nothing else: it is never in the log, and losing it costs nothing. It says nothing that a person,
a model or a tool said.
"""

import asyncio
from types import TracebackType
from typing import Final, Self

from holdfast.live.live import Awaited, WaitStatus
from holdfast.turns.held_session import HeldSession

FIRST_SECONDS: Final = (10, 30, 60)
"""The first statuses of a silence."""

EVERY_SECONDS: Final = 60
"""The later ones, at multiples of this."""


class Wait:
    """A wait of a held session, for as long as its block runs. One timer waits for the next status; what comes
    meanwhile only notes the time, so that a stream in full flow costs one look at the clock for each read."""

    def __init__(
        self,
        session: HeldSession,
        awaits: Awaited,
        *,
        attempt: int = 1,
        tool_call_id: str = "",
        reason: str = "",
        delay_seconds: float | None = None,
    ) -> None:
        """`delay_seconds`: how long the wait will last, if that is known."""
        self._session = session
        self._awaits = awaits
        self._attempt = attempt
        self._tool_call_id = tool_call_id
        self._reason = reason
        self._until = None if delay_seconds is None else session.clock.now_ms() + round(delay_seconds * 1000)
        self._silent_from = session.clock.monotonic()
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.create_task(self._publish_statuses(), name=f"status of {self._awaits}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()

    def heard(self, awaits: Awaited | None = None) -> None:
        """Begin the silence again, because something came; from now on the wait is for `awaits`."""
        self._silent_from = self._session.clock.monotonic()
        self._awaits = awaits or self._awaits

    async def _publish_statuses(self) -> None:
        clock = self._session.clock
        silent_from, due = self._silent_from, FIRST_SECONDS[0]
        while True:
            await clock.sleep(silent_from + due - clock.monotonic())
            if silent_from != self._silent_from:
                silent_from, due = self._silent_from, FIRST_SECONDS[0]
                continue
            silence = round(clock.monotonic() - silent_from, 3)  # Sums of floats may be a hair too small.
            if silence >= due:
                self._publish(silence)
                due = next_status(silence)

    def _publish(self, silence: float) -> None:
        status = WaitStatus(
            awaits=self._awaits,
            seconds=round(silence),
            since=self._session.clock.now_ms() - round(silence * 1000),
            attempt=self._attempt,
            tool_call_id=self._tool_call_id,
            reason=self._reason,
            until=self._until,
        )
        self._session.live.publish(self._session.key, status)


def next_status(silence: float) -> int:
    """The second of a silence at which its next status is due."""
    return next((due for due in FIRST_SECONDS if due > silence), (int(silence) // EVERY_SECONDS + 1) * EVERY_SECONDS)
