"""Grants: permissions that people give in advance, for a place or for everything that a session asks; `permissions.py`
lists and revokes them."""

from contextlib import suppress

from holdfast.events.body import Body
from holdfast.events.ids import Key
from holdfast.events.session import SettingsChanged
from holdfast.server.errors import Conflict, OperationError
from holdfast.server.operations.requests import RequestVerbs
from holdfast.server.operations.settings import SettingsVerbs, check_rules, with_place_rules
from holdfast.session.permissions import EVERY_CALL
from holdfast.session.state import State
from holdfast.store.grants import GrantOrigin, TooManyGrants, admit_grants


def check_room(outcome: object) -> None:
    """Raise `Conflict` if grants were refused because the owner has too many."""
    if isinstance(outcome, TooManyGrants):
        raise Conflict(outcome.code, outcome.message)


class GrantVerbs(SettingsVerbs, RequestVerbs):
    async def grant(self, key: Key, place: str, rules: tuple[str, ...], *, granted_by: str = "") -> None:
        """Allow the rules for all later sessions of the owner in that place (the empty place is everywhere), and for
        this session as long as it works there. Safe to repeat; a crash in between leaves this session to ask again.
        Raises `Conflict` if the owner would have too many grants."""
        check_rules(rules)
        origin = GrantOrigin(key.session, granted_by, self._clock.now_ms())
        check_room(await self.store.grant(key.owner, place, rules, origin=origin))

        async def granted(state: State) -> list[Body]:
            return with_place_rules(state, rules) if place in ("", state.working_directory or "") else []

        await self.change(key, granted)

    async def check_grant(self, key: Key, place: str, rules: tuple[str, ...], *, granted_by: str = "") -> None:
        """Raise `Conflict` or `Invalid` if `grant` would be refused now. An answer that carries a grant is accepted
        only after this: it is refused as a whole, or stands as a whole, unless other grants take the last room in
        between."""
        check_rules(rules)
        held = await self.store.grants(key.owner)
        check_room(admit_grants(held, place, rules, GrantOrigin(key.session, granted_by)))

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
