"""Permissions that people granted in advance: listed with their origins, and revoked.

A rule that was granted for a directory, or everywhere, is stored with its owner; a rule that was granted for a session
is in that session's log. Revoking is safe to repeat: a permission is listed until it is revoked everywhere.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import Key, Owner, RequestId, SessionId
from holdfast.events.request import PermissionCompleted, PermissionRequested
from holdfast.events.session import SessionStarted, SettingsChanged
from holdfast.protocol.permission import Permission, PermissionOrigin
from holdfast.server.errors import NotFound
from holdfast.server.operations.session_access import EVERYWHERE
from holdfast.server.operations.settings import SettingsVerbs
from holdfast.session.state import State
from holdfast.store.grants import GRANTED_SOMEWHERE, GrantOrigin
from holdfast.store.log_pages import NO_SNAPSHOT, pages

ID_CHARACTERS: Final = 16


class PermissionVerbs(SettingsVerbs):
    async def permissions(self, owner: Owner) -> tuple[Permission, ...]:
        """The owner's permissions for directories, and for everywhere."""
        found: dict[tuple[str, str], list[GrantOrigin]] = {}
        for grant in await self.store.grants(owner):
            found.setdefault((grant.place, grant.rule), []).append(grant.origin)
        return tuple(_of_place(place, rule, origins) for (place, rule), origins in found.items())

    async def session_permissions(self, key: Key) -> tuple[Permission, ...]:
        """The permissions of a session: its own first, then those of its working directory and of everywhere."""
        state = await self.state(key)
        origins = await self._session_origins(key, state.allow)
        own = [_of_session(key.session, rule, origins.get(rule, ())) for rule in dict.fromkeys(state.allow)]
        here = ("", state.working_directory or "")
        placed = [
            found
            for found in await self.permissions(key.owner)
            if (found.directory or "") in here and found.rule in state.place_rules
        ]
        return (*own, *placed)

    async def revoke_permission(self, owner: Owner, permission_id: str) -> Permission:
        """Revoke a permission for a directory, or for everywhere: it no longer holds for the next call of any session.
        The sessions in which it was granted lose it first: a crash before the end leaves it listed."""
        for found in await self.permissions(owner):
            if found.id == permission_id:
                for session in {origin.session_id for origin in found.origins if origin.session_id}:
                    with suppress(NotFound):
                        await self._remove_rule(Key(owner, SessionId(session)), found.rule)
                place = found.directory or ""
                told = self._told("permission.revoked", place or EVERYWHERE, owner=owner, detail=found.rule)
                await self.store.revoke_grant(owner, place, found.rule, audit=told)
                return found
        raise _not_granted(permission_id)

    async def revoke_session_permission(self, key: Key, permission_id: str) -> Permission:
        """Revoke a permission of one session: it no longer holds for the session's next call."""
        for found in await self.session_permissions(key):
            if found.id == permission_id and found.scope == "session":
                await self._remove_rule(key, found.rule)
                return found
        raise _not_granted(permission_id)

    async def _remove_rule(self, key: Key, rule: str) -> None:
        async def without(state: State) -> list[Body]:
            left = tuple(held for held in state.allow if held != rule)
            return [SettingsChanged(allow=left)] if len(left) < len(state.allow) else []

        await self.change(key, without)

    async def _session_origins(self, key: Key, rules: Sequence[str]) -> Mapping[str, Sequence[PermissionOrigin]]:
        """The origins of each rule, from the session's log."""
        if not rules:
            return {}
        origins_in_log = _RuleOrigins(key.session)
        loaded = await self.store.load(key, fold_version=NO_SNAPSHOT)
        if loaded is not None:
            async for page in pages(self.store, loaded):
                for event in page:
                    origins_in_log.take(event)
        return origins_in_log.origins


class _RuleOrigins:
    """Follows the rules of a session through its log, with the origin of each."""

    def __init__(self, session: SessionId) -> None:
        self.origins: dict[str, list[PermissionOrigin]] = {}
        self._session = session
        self._requested: dict[RequestId, str] = {}

    def take(self, event: Event) -> None:
        match event.body:
            case PermissionRequested(request_id=request_id, rule=rule):
                self._requested[request_id] = rule
            case SessionStarted(allow=rules):
                self._add(event, rules)
            case SettingsChanged(allow=tuple() as rules):
                self.origins = {rule: found for rule, found in self.origins.items() if rule in rules}
                self._add(event, [rule for rule in rules if rule not in self.origins])
            case PermissionCompleted(
                decision="approved-for-session", place=None, request_id=request_id, rules=rules, answered_by=by
            ):
                self._add(event, rules or (self._requested.get(request_id, ""),), by)
            case _:
                pass

    def _add(self, event: Event, rules: Iterable[str], by: str = "") -> None:
        for rule in rules:
            origin = PermissionOrigin(granted_by=by, granted_at=event.time, session_id=self._session)
            self.origins.setdefault(rule, []).append(origin)


def _of_place(place: str, rule: str, origins: Sequence[GrantOrigin]) -> Permission:
    return Permission(
        id=_id("place", place, rule),
        rule=rule,
        scope="directory" if place else "everywhere",
        directory=place or None,
        session_id=None,
        origins=tuple(
            PermissionOrigin(
                granted_by=origin.granted_by,
                granted_at=origin.granted_at or None,
                session_id=origin.session or None,
            )
            for origin in origins
            if origin != GRANTED_SOMEWHERE
        ),
    )


def _of_session(session: SessionId, rule: str, origins: Sequence[PermissionOrigin]) -> Permission:
    return Permission(
        id=_id("session", session, rule),
        rule=rule,
        scope="session",
        directory=None,
        session_id=session,
        origins=tuple(origins),
    )


def _id(*parts: str) -> str:
    """A digest of the parts. Each part is prefixed with its length, so that no two permissions share an id."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:ID_CHARACTERS]


def _not_granted(permission_id: str) -> NotFound:
    return NotFound("permission_not_found", f"There is no permission {permission_id}; it may have been taken back.")
