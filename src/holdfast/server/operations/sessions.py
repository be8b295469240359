"""Sessions: create, list, rename, annotate and delete them."""

import typing
from collections.abc import Mapping

import msgspec

from holdfast.events.body import Body
from holdfast.events.ids import Key, Owner, Position, SessionId
from holdfast.events.session import (
    ClientTool,
    Conventions,
    DirectoryIdentity,
    SessionStarted,
    SettingsChanged,
    TitleChanged,
)
from holdfast.live.live import Changed, Lost
from holdfast.models.choice import row_model
from holdfast.server.errors import Conflict, Invalid
from holdfast.server.operations.session_access import check_size, provider_in
from holdfast.server.operations.settings import SettingsVerbs, check_client_tools, check_model, check_rules
from holdfast.session.policy import policy_of
from holdfast.session.state import State
from holdfast.store.annotations import too_large
from holdfast.store.store import Committed, LedgerEntry, NewSession, Outcome, Page, Rejected, Unit
from holdfast.store.turn_limits import QuotaCode


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The choices with which a session is created. A choice that is left out follows the configuration."""

    model: str | None = None
    system_message: str | None = None
    working_directory: str | None = None
    directory_identity: DirectoryIdentity | None = None
    """The identity of the working directory, where a surface has already looked it up."""
    tools: tuple[str, ...] | None = None
    client_tools: tuple[ClientTool, ...] = ()
    allow: tuple[str, ...] = ()
    dry_run: bool = False
    title: str | None = None
    wants_title: bool = False
    """A model makes the title from the first message, unless the session has a title or a parent."""
    parent: SessionId | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    conventions: Conventions = "holdfast"
    client_name: str = ""
    own_token: bool = False
    """The client entrusted the session with a token for the model's provider."""
    settings: SettingsChanged | None = None
    """Further settings that a surface lets a client choose."""


class SessionVerbs(SettingsVerbs):
    async def create(self, owner: Owner, options: SessionOptions, session_id: SessionId | None = None) -> SessionId:
        """Create a session, durable on return. If the owner has a session of that id, it stays as it is."""
        chosen_id = SessionId(self._new_id()) if session_id is None else session_id
        await self.create_if_missing(owner, options, chosen_id)
        return chosen_id

    async def create_if_missing(self, owner: Owner, options: SessionOptions, session_id: SessionId) -> bool:
        """Create a session under that id. Returns whether this call created it."""
        self.check_id("session", session_id)
        self._check_options(options)
        check_client_tools(options.client_tools)
        key = Key(owner, session_id)
        started = SessionStarted(
            session_id=session_id,
            producer=self._producer,
            start_time=self._clock.now_ms(),
            model=options.model,
            system_message=options.system_message,
            working_directory=options.working_directory,
            directory_identity=options.directory_identity or self._identity(options.working_directory),
            tools=options.tools,
            client_tools=options.client_tools,
            allow=options.allow,
            dry_run=options.dry_run,
            wants_title=options.wants_title and not options.title and options.parent is None,
            parent=options.parent,
            metadata=options.metadata,
            conventions=options.conventions,
            process=self.store.process if policy_of(options.conventions).cold_resume_ends_pending_work else "",
            client_name=options.client_name,
        )
        bodies: list[Body] = [started]
        if options.settings is not None:
            bodies.append(options.settings)
        if options.title:
            bodies.append(TitleChanged(title=options.title, chosen=True))
        row = NewSession(
            host=self._host if self._is_only_here(options.working_directory) else None,
            tools=options.tools or (),
            model=row_model(options.model, provider_in(options.settings), own_token=options.own_token),
            made_from=options.parent,
            metadata=options.metadata,
            created_at=self._clock.now_ms(),
        )
        granted = self._rules_told(key, [SettingsChanged(allow=options.allow)]) if options.allow else ()
        unit = Unit(key=key, fence=None, events=self._events(bodies), creates=row, title=options.title, audit=granted)
        outcome = await self.store.commit(unit)
        self.check_quota(outcome)
        if not isinstance(outcome, Committed) and await self.store.row(key) is None:
            raise Conflict("session_deleted", f"The session {session_id} was deleted; its id is not used again.")
        return isinstance(outcome, Committed)

    def _check_options(self, options: SessionOptions) -> None:
        check_rules(options.allow)
        if options.settings is not None:
            self.check_settings(options.settings)
        check_size("A title", options.title or "", self._bounds.max_name_characters)
        check_size("A name", options.client_name, self._bounds.max_name_characters)
        if options.model is not None:
            check_model(options.model, self._bounds)
        check_size("A system message", options.system_message or "", self._bounds.max_instructions_characters)
        entries, characters = self._bounds.max_metadata_entries, self._bounds.max_metadata_characters
        if refused := too_large(options.metadata, max_entries=entries, max_characters=characters):
            raise Invalid(refused.code, refused.message)

    def check_quota(self, outcome: Outcome) -> None:
        """Raise `Conflict` if the store refused a new session because its owner has used up a quota."""
        if isinstance(outcome, Rejected) and outcome.reason in typing.get_args(QuotaCode):
            raise Conflict(outcome.reason, self.store.limits.quota_sentence(outcome.reason))

    async def check_storage(self, owner: Owner) -> None:
        """Raise the error that `send` would raise if the owner's storage is full: for records outside of a message."""
        limits = self.store.limits
        if limits.has_quota(owner) and limits.stores_too_much(await self.store.stored(owner)):
            raise Conflict("storage_full", limits.quota_sentence("storage_full"))

    async def sessions(
        self, owner: Owner, *, limit: int = 50, after: str | None = None, text: str = "", pinned: bool | None = None
    ) -> Page:
        return await self.store.rows(owner, limit=max(1, min(limit, 200)), after=after, text=text, pinned=pinned)

    async def delete(self, key: Key) -> None:
        """Delete a session with its whole log. Its costs stay in the ledger; its id is not used again."""
        told = self._told("session.deleted", key.session, owner=key.owner)
        if not await self.store.delete(key, audit=told):
            raise self._not_found(key)
        self.live.publish(key, Changed())
        self.live.publish(key, Lost())

    async def see(self, key: Key, position: Position) -> Position:
        """Note that the owner has seen the session up to the position. Returns how far the owner has seen it now: a
        smaller position changes nothing."""
        seen = await self.store.see(key, position)
        if seen is None:
            raise self._not_found(key)
        return seen

    async def annotate(
        self, key: Key, *, pinned: bool | None = None, metadata: Mapping[str, str | None] | None = None
    ) -> None:
        """Pin or unpin the session, and merge into its metadata: a value is set, None removes the entry, the other
        entries stay. All of it or nothing; the time of the session's last change stays."""
        refused = await self.store.annotate(
            key,
            pinned=pinned,
            metadata=metadata,
            max_entries=self._bounds.max_metadata_entries,
            max_characters=self._bounds.max_metadata_characters,
        )
        if refused is not None and refused.code == "session_not_found":
            raise self._not_found(key)
        if refused is not None:
            raise Invalid(refused.code, refused.message)

    async def rename(self, key: Key, title: str, *, chosen: bool = True) -> None:
        """Set the title. A suggested title may replace one that no person chose."""
        check_size("A title", title, self._bounds.max_name_characters)
        await self._record(key, TitleChanged(title=title, chosen=chosen))

    async def suggest_title(self, key: Key, title: str) -> bool:
        """Set the title unless a person chose one. Returns whether it was set."""
        check_size("A title", title, self._bounds.max_name_characters)

        async def suggested(state: State) -> list[Body]:
            return [] if state.title_chosen else [TitleChanged(title=title)]

        return await self.change(key, suggested) is not None

    async def usage(self, owner: Owner, session: SessionId | None = None) -> tuple[LedgerEntry, ...]:
        return await self.store.ledger(owner, session)
