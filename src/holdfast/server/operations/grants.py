"""Grants: permissions that people give in advance, for a place or for everything that a session asks; `permissions.py`
lists and revokes them."""

from contextlib import suppress

from holdfast.events.body import Body
from holdfast.events.ids import Key, Owner, RequestId
from holdfast.events.inbox import PermissionAnswer
from holdfast.events.request import Decision
from holdfast.events.session import SettingsChanged
from holdfast.protocol.request import Answered
from holdfast.server.errors import Conflict, OperationError
from holdfast.server.operations.requests import RequestVerbs
from holdfast.server.operations.session_access import EVERYWHERE
from holdfast.server.operations.settings import SettingsVerbs, check_rules
from holdfast.session.permissions import EVERY_CALL
from holdfast.session.state import State
from holdfast.store.grants import GrantOrigin, NewGrants, TooManyGrants


class GrantVerbs(SettingsVerbs, RequestVerbs):
    async def approve_always(
        self,
        key: Key,
        request_id: RequestId,
        place: str,
        *,
        decision: Decision = "approved-for-session",
        feedback: str = "",
        rules: tuple[str, ...] = (),
        answer_id: str | None = None,
        answered_by: str = "",
    ) -> Answered:
        """Approve a request, and allow such calls in all later sessions of the owner in that place (the empty place is
        everywhere). `rules` stand in for the one that the request names. The place is a part of the answer: under the
        same id, an answer with another place is another answer. An answer is refused if it grants more than its owner
        or its session may have.

        Answer and grants are one write, so the same answer again never grants what was revoked meanwhile. The session
        itself has the rules from the place as well, from the answer's promotion on: a revocation before leaves none."""
        opened = (await self.state(key)).requests.get(request_id)
        granted = rules or ((opened.rule,) if opened and opened.rule else ())
        check_rules(granted)
        origin = GrantOrigin(key.session, answered_by, self._clock.now_ms())
        return await self._decide(
            key,
            request_id,
            PermissionAnswer(decision=decision, feedback=feedback, rules=rules, place=place),
            answer_id,
            answered_by,
            NewGrants(place=place, rules=granted, origin=origin),
        )

    async def grant(self, owner: Owner, place: str, rules: tuple[str, ...], origin: GrantOrigin) -> None:
        """Allow the rules for the sessions of the owner that are created in that place, move there or are resumed there
        from now on. Safe to repeat. Raises `Conflict` if the owner would have too many grants."""
        check_rules(rules)
        told = self._told("permission.granted", place or EVERYWHERE, owner=owner, detail=", ".join(rules))
        outcome = await self.store.grant(owner, place, rules, origin=origin, audit=told)
        if isinstance(outcome, TooManyGrants):
            raise Conflict(outcome.code, outcome.message)

    async def allow_all(self, key: Key, *, enabled: bool) -> None:
        """Allow every call of the session from now on, and approve its open permission requests; or let it ask again.
        Rules that were granted one by one stay."""

        async def allowed(state: State) -> list[Body]:
            others = tuple(rule for rule in state.allow if rule != EVERY_CALL)
            rules = (*others, EVERY_CALL) if enabled else others
            return [SettingsChanged(allow=rules)] if rules != tuple(state.allow) else []

        await self.change(key, allowed)
        for request in await self.requests(key) if enabled else ():
            if request.kind == "permission":
                with suppress(OperationError):  # It was answered meanwhile, or the turn is over.
                    await self.decide_permission(key, request.request_id, "approved")
