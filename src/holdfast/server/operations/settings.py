"""Settings of a session: its model, mode, working directory, rules and client tools, changed by records in its log."""

import re
import typing
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import Key
from holdfast.events.request import PermissionKind
from holdfast.events.session import ClientTool, DirectoryIdentity, Mode, ModeChanged, ModelChanged, SettingsChanged
from holdfast.server.errors import Conflict, Invalid
from holdfast.server.operations.session_access import SessionAccess, check_size
from holdfast.session.bounds import Bounds
from holdfast.session.fold import fold_turn
from holdfast.session.permissions import BadRule, check_given_rules, check_rule
from holdfast.session.state import State
from holdfast.store.audit import AuditEntry
from holdfast.store.log_pages import PAGE_BYTES, PAGE_EVENTS
from holdfast.tools.working_directory import is_still

Change = Callable[[State], Awaitable[Sequence[Body]]]
"""From a session's state to the records that change it, or to none. `change` may call it again with a newer state."""

Held = Callable[[Sequence[str]], tuple[str, ...]]
"""From the rules granted in a place to the rules of them that hold for the caller."""

CHANGE_TRIES: Final = 20
"""How often a change is decided anew because another writer appended first."""

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class SettingsVerbs(SessionAccess):
    async def change(self, key: Key, change: Change, *, held: Held | None = None) -> Event | None:
        """Append the records that `change` makes of the session's state, provided that the log still ends where that
        state does; otherwise fold the events in between and call `change` again. Of two concurrent changes neither is
        lost.

        Returns the last record, or None when there was nothing to change. Raises `Conflict` when other writers were
        faster every time. A crash leaves all of the records or none."""
        state = await self.state(key)
        for _ in range(CHANGE_TRIES):
            bodies = await change(state)
            if not bodies:
                return None
            written = await self._checked(key, bodies, held)
            last = await self._append(
                key,
                written,
                provider=state.provider,
                supposes_head=state.head,
                audit=self._rules_told(key, written, before=state.allow),
            )
            if last is not None:
                await self._take_granted(key, written, held)
                return last
            while missed := await self.store.events_after(key, state.head, limit=PAGE_EVENTS, max_bytes=PAGE_BYTES):
                fold_turn(missed, state)
        raise Conflict("changed_meanwhile", "The session kept changing while this was written. Try again.")

    async def record(self, key: Key, *bodies: Body) -> Event:
        """Append records about work outside of the conversation; returns the last one. Records that follow from the
        session's state go through `change`."""
        written = await self._checked(key, bodies)
        last = await self._record(key, *written, audit=self._rules_told(key, written))
        await self._take_granted(key, written)
        return last

    def _rules_told(self, key: Key, bodies: Sequence[Body], *, before: Collection[str] = ()) -> tuple[AuditEntry, ...]:
        """Entries of the audit log about the rules of the session that these records grant and revoke."""
        entries: list[AuditEntry] = []
        for body in bodies:
            if not isinstance(body, SettingsChanged) or body.allow is UNSET:
                continue
            new = [rule for rule in body.allow if rule not in before]
            gone = [rule for rule in before if rule not in body.allow]
            if new:
                detail = f"in the session: {', '.join(new)}"
                entries.append(self._told("permission.granted", key.session, owner=key.owner, detail=detail))
            if gone or not body.allow:
                detail = f"in the session: {', '.join(gone) or 'all that it had'}"
                entries.append(self._told("permission.revoked", key.session, owner=key.owner, detail=detail))
        return tuple(entries)

    async def move(
        self, key: Key, directory: str, identity: DirectoryIdentity | None = None, *, held: Held | None = None
    ) -> None:
        """Let the session work in the directory from its next step on: in another one, or in the folder that now has
        the path of its own. `identity` names the folder where a surface has already looked it up; `held` picks the
        rules granted there that hold for the caller."""

        async def moved(state: State) -> list[Body]:
            if directory == state.working_directory and is_still(state.directory_identity, directory):
                return []
            chosen = UNSET if identity is None else identity
            return [SettingsChanged(working_directory=directory, directory_identity=chosen)]

        await self.change(key, moved, held=held)

    async def change_model(self, key: Key, model: str) -> None:
        """From the next step on."""
        check_model(model, self._bounds)

        async def changed(state: State) -> list[Body]:
            return [ModelChanged(new_model=model, previous_model=state.model)]

        await self.change(key, changed)

    async def change_mode(self, key: Key, mode: Mode, *, expected: str | None = None) -> bool:
        """Change the mode, unless the session has another mode than the expected one. Returns whether the session has
        the mode now."""
        is_as_expected = True

        async def changed(state: State) -> list[Body]:
            nonlocal is_as_expected
            is_as_expected = expected is None or expected == state.mode
            is_new = is_as_expected and state.mode != mode
            return [ModeChanged(new_mode=mode, previous_mode=state.mode)] if is_new else []

        await self.change(key, changed)
        return is_as_expected

    def check_settings(self, settings: SettingsChanged) -> None:
        if settings.allow is not UNSET:
            check_stored_rules(settings.allow)
        if settings.client_tools is not UNSET:
            check_client_tools(settings.client_tools)
        for subject, name in (("A reasoning effort", settings.reasoning_effort), ("A name", settings.client_name)):
            if isinstance(name, str):
                check_size(subject, name, self._bounds.max_name_characters)
        if settings.system_message is not UNSET:
            limit = self._bounds.max_instructions_characters
            check_size("A system message", settings.system_message or "", limit)

    async def _checked(self, key: Key, bodies: Sequence[Body], held: Held | None = None) -> list[Body]:
        written: list[Body] = []
        for body in bodies:
            if isinstance(body, SettingsChanged):
                self.check_settings(body)
                body = await self._with_identity(key, await self._with_place_rules(key, body, held))
            written.append(body)
        return written

    async def _with_identity(self, key: Key, settings: SettingsChanged) -> SettingsChanged:
        """Fix the folder that a session moves to. A session that runs on another host sees another folder under that
        path: there its holder looks."""
        directory = settings.working_directory
        if directory is UNSET or settings.directory_identity is not UNSET:
            return settings
        row = await self.session(key)
        is_here = row.host in (None, self._host)
        return msgspec.structs.replace(settings, directory_identity=self._identity(directory) if is_here else None)

    async def _with_place_rules(self, key: Key, settings: SettingsChanged, held: Held | None) -> SettingsChanged:
        """Replace the rules granted in the old directory by the rules granted in the new one."""
        if not isinstance(settings.working_directory, str):
            return settings
        rules = await self.store.granted(key.owner, settings.working_directory)
        return msgspec.structs.replace(settings, place_rules=rules if held is None else held(rules))

    async def _take_granted(self, key: Key, written: Sequence[Body], held: Held | None = None) -> None:
        """After a move, read the grants once more. A grant may have been stored after the move read the grants, and
        may have read the session before the move was written: then neither has seen the other."""
        if not any(isinstance(body, SettingsChanged) and isinstance(body.working_directory, str) for body in written):
            return

        async def missed(state: State) -> list[Body]:
            rules = await self.store.granted(key.owner, state.working_directory or "")
            all_rules = tuple(sorted({*state.place_rules, *(rules if held is None else held(rules))}))
            return [SettingsChanged(place_rules=all_rules)] if set(all_rules) != set(state.place_rules) else []

        await self.change(key, missed)


def check_rules(rules: Sequence[str]) -> None:
    """Check rules that a client gives."""
    try:
        check_given_rules(rules)
    except BadRule as error:
        raise Invalid(error.code, str(error)) from error


def check_stored_rules(rules: Sequence[str]) -> None:
    """Check rules that are left of those that the session has: they may be older than the bounds, and many."""
    for rule in rules:
        try:
            check_rule(rule)
        except BadRule as error:
            raise Invalid(error.code, str(error)) from error


def check_client_tools(tools: Sequence[ClientTool]) -> None:
    for tool in tools:
        if not _TOOL_NAME.fullmatch(tool.name):
            raise Invalid(
                "tool_name_invalid", "A tool's name has 1 to 64 characters: letters, digits, _ and - are allowed."
            )
        try:
            msgspec.msgpack.encode(tool.parameters)
        except (OverflowError, RecursionError, UnicodeEncodeError) as error:
            raise Invalid("tool_invalid", f"The parameters of {tool.name} can't be kept: {error}.") from error
        if tool.name in typing.get_args(PermissionKind):
            # Approving it for the session would grant the kind of that name to every tool.
            raise Invalid("tool_name_reserved", f"{tool.name} is a kind of permission; a tool needs another name.")


def check_model(model: str, bounds: Bounds) -> None:
    limit = bounds.max_name_characters
    if not model or len(model) > limit or not model.isprintable():
        raise Invalid("model_invalid", f"A model's name has 1 to {limit} printable characters.")
