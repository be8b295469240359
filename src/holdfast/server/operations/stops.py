"""Stops: end the running turn, and take the waiting messages back."""

import msgspec

from holdfast.events import inbox
from holdfast.events.ids import Key, TurnId
from holdfast.events.inbox import StopCause
from holdfast.protocol.stop import StopOutcome, Stopped
from holdfast.server.operations.messages import returned_messages, returned_texts
from holdfast.server.operations.session_access import SessionAccess


class StopVerbs(SessionAccess):
    async def stop(
        self,
        key: Key,
        *,
        stop_id: str | None = None,
        keep_queued: bool = False,
        cause: StopCause = "stopped",
        meant_for: TurnId | None = None,
    ) -> Stopped:
        """End the running turn. If it is not the turn that the stop is `meant_for`, nothing is stopped or taken back.
        Otherwise waiting messages are returned, unless `keep_queued`.

        The receipt is durable on return, with one exception: if the stop changes nothing and the owner's storage is
        full, none is stored, and the same `stop_id` again is a new stop."""
        chosen_id = self._new_id() if stop_id is None else stop_id
        self.check_id("stop", chosen_id)
        item = inbox.Stop(stop_id=chosen_id, keep_queued=keep_queued, cause=cause, meant_for=meant_for)
        accepted = await self._put(key, item, f"stop:{chosen_id}")
        outcome = accepted.item.outcome if accepted.item.state == "promoted" else "stopping"
        return Stopped(
            stop_id=chosen_id,
            outcome=msgspec.convert(outcome, StopOutcome),
            returned=returned_texts(accepted.removed),
            returned_messages=returned_messages(accepted.removed),
        )
