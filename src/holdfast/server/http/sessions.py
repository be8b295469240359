"""Sessions: make, list, look at, change, delete and stop them."""

import asyncio
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.commands.isolation import REFUSED
from holdfast.events.ids import Key, Position, SessionId, TurnId, random_id
from holdfast.events.session import ClientTool, DirectoryIdentity, Mode, Provider, SettingsChanged
from holdfast.live.live import Delta
from holdfast.models.credentials import ProviderSecrets, Secrets
from holdfast.models.own_provider import check_provider
from holdfast.server.errors import Invalid
from holdfast.server.http.endpoint import ChosenId, Endpoint, routes_of
from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Identity
from holdfast.server.http.message_options import Thinking, Tier, budget, model_of_tier
from holdfast.server.http.messages import MessageView, page_of, starts_before
from holdfast.server.http.service import Service
from holdfast.server.http.views import SessionSettings, SessionView, session_view, settings_view
from holdfast.server.http.visible import backwards
from holdfast.server.http.wire import answer, nothing, read_body, read_query
from holdfast.server.operations import SessionOptions, Stopped
from holdfast.store.store import Cursor

MAX_TOOLS: Final = 128

Id = Annotated[str, Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
EntryName = Annotated[str, Meta(min_length=1, max_length=64)]


class ToolGiven(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that a client runs: the session asks for it, and waits for the answer."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: Annotated[str, Meta(max_length=10_000)] = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    """A JSON schema."""
    asks_permission: bool = False
    ends_turn: bool = False


class ProviderGiven(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the session's model is asked instead. Its key is kept apart, and never in the log."""

    base_url: Annotated[str, Meta(min_length=1, max_length=2_000)]
    type: Literal["openai", "azure"] = "openai"
    model: Name | None = None
    api_version: Name | None = None
    api_key: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None

    def __repr__(self) -> str:
        return f"ProviderGiven(base_url={self.base_url!r})"


class NewSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a session is made with. Anything left out follows the server."""

    id: ChosenId | None = None
    """A name of one's own for it: made once, however often it is asked for."""
    title: Name | None = None
    model: Name | None = None
    system_message: Annotated[str, Meta(max_length=200_000)] | None = None
    working_directory: Annotated[str, Meta(min_length=1, max_length=4_096)] | None = None
    tools: Annotated[tuple[Name, ...], Meta(max_length=MAX_TOOLS)] | None = None
    client_tools: Annotated[tuple[ToolGiven, ...], Meta(max_length=MAX_TOOLS)] = ()
    allow: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=1_000)], ...], Meta(max_length=100)] = ()
    """Permission rules that are granted from the start, such as `write(docs/*)`."""
    dry_run: bool = False
    tier: Tier | None = None
    """A model by what the server offers, instead of a name."""
    thinking: Thinking | None = None
    """How long the model may think, unless a message says otherwise."""
    parent: Id | None = None
    metadata: dict[EntryName, str] = {}
    provider: ProviderGiven | None = None


class Listing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    cursor: str | None = None
    q: Annotated[str, Meta(max_length=200)] = ""
    """Only sessions with this in the title or in a message."""
    pinned: bool | None = None
    """Only those that are pinned, or that are not."""


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first, whether pinned or not: who wants the pinned ones first asks for them alone, too."""

    sessions: tuple[SessionView, ...]
    next: str | None
    """The `cursor` of the next page."""


class Paging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    before: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    """Only messages before this position."""
    leave_out_replayed: bool = False
    """For who also asks for the turn's stream: without what that tells, while it tells it."""


class SessionDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A session and a page of what was said in it."""

    session: SessionView
    settings: SessionSettings
    messages: tuple[MessageView, ...]
    before: int | None
    """Ask for the page before this one with it. None: this is the first."""
    cursor: str
    """Follow the session's events from here: they begin where the newest page ends."""


class Changes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays as it is."""

    title: Name | UnsetType = UNSET
    model: Name | UnsetType = UNSET
    tier: Tier | UnsetType = UNSET
    thinking: Thinking | UnsetType | None = UNSET
    """Null: the model's own habit."""
    mode: Mode | UnsetType = UNSET
    working_directory: Annotated[str, Meta(min_length=1, max_length=4_096)] | UnsetType = UNSET
    """Where the session works from its next step on. The same path again chooses what is found there now."""
    pinned: bool | UnsetType = UNSET
    metadata: dict[EntryName, str | None] | UnsetType = UNSET
    """Merged into what is there: a value is set, null takes the entry out, the others stay."""


class SeenUpTo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    position: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Of the last event that was seen; left out: all that there is."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """It never goes back: what was seen once stays seen."""

    position: int
    unread: bool
    """Something came after it."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stop_id: ChosenId | None = None
    """The same id again is the same stop."""
    turn_id: Id | None = None
    """Only if this turn is the one that runs."""
    keep_queued: bool = False
    """Leave the messages that wait where they are. Otherwise they come back in the answer."""


def routes(service: Service) -> list[Route]:
    return routes_of(Sessions(service).endpoints())


class Sessions:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._operations = service.operations

    def endpoints(self) -> list[Endpoint]:
        one = "/v1/sessions/{session_id}"
        return [
            Endpoint(
                method="POST",
                path="/v1/sessions",
                handler=self.create,
                summary="Make a session",
                body=NewSession,
                answers={201: SessionView, 200: SessionView},
            ),
            Endpoint(
                method="GET",
                path="/v1/sessions",
                handler=self.list_all,
                summary="List or search one's sessions",
                query=Listing,
                answers={200: SessionList},
            ),
            Endpoint(
                method="GET",
                path=one,
                handler=self.look,
                summary="A session with a page of its messages",
                query=Paging,
                answers={200: SessionDetail},
            ),
            Endpoint(
                method="PATCH",
                path=one,
                handler=self.change,
                summary="Change a session's title, pin, metadata or settings",
                body=Changes,
                answers={200: SessionView},
            ),
            Endpoint(
                method="DELETE",
                path=one,
                handler=self.delete,
                summary="Delete a session and all of its log",
                answers={204: None},
            ),
            Endpoint(
                method="POST",
                path=f"{one}/seen",
                handler=self.see,
                summary="Say how far one has seen a session",
                body=SeenUpTo,
                answers={200: Seen},
            ),
            Endpoint(
                method="POST",
                path=f"{one}/cancel",
                handler=self.cancel,
                summary="Stop the running turn",
                body=Cancel,
                answers={200: Stopped},
            ),
        ]

    async def create(self, request: Request) -> Response:
        identity = self._service.identity(request)
        wanted = await read_body(request, NewSession, limit=self._service.settings.max_body_bytes)
        options = await self._options(identity, wanted)
        made = SessionId(wanted.id if wanted.id is not None else random_id())
        key = Key(identity.owner, made)
        is_new = await self._operations.create_if_missing(identity.owner, options, made)
        if wanted.provider is not None and wanted.provider.api_key is not None:
            # After a crash before this the session waits for its key; the same request again brings it.
            kept = ProviderSecrets(api_key=wanted.provider.api_key)
            await self._service.credentials.put(key, Secrets(providers={wanted.provider.base_url: kept}))
        view = session_view(await self._operations.session(key))
        return answer(view, 201 if is_new else 200, {"location": f"/v1/sessions/{made}"})

    async def _options(self, identity: Identity, wanted: NewSession) -> SessionOptions:
        """What was asked for, as far as the role goes, and the server's choice for the rest."""
        policy, settings = self._service.policy(identity), self._service.settings
        model = self._model(identity, wanted)
        policy.check_rules(wanted.allow)
        for name in wanted.tools or ():
            if name not in settings.known_tools:
                raise Invalid("tool_unknown", f"There is no tool {name} here.")
            if name in settings.refused_tools:
                raise ApiError(403, "commands_refused", REFUSED)
        if wanted.parent is not None:
            await self._operations.session(Key(identity.owner, SessionId(wanted.parent)))
        directory, folder = settings.directory, None
        if wanted.working_directory is not None:
            folder = policy.checked_directory(identity.owner, wanted.working_directory)
            directory = folder.path
        return SessionOptions(
            model=model or (None if wanted.provider else settings.model),
            system_message=wanted.system_message,
            working_directory=directory,
            directory_identity=folder,
            tools=policy.chosen_tools(wanted.tools, settings.tools),
            client_tools=tuple(_client_tool(found) for found in wanted.client_tools),
            allow=wanted.allow,
            dry_run=wanted.dry_run,
            title=wanted.title,
            parent=SessionId(wanted.parent) if wanted.parent is not None else None,
            wants_title=settings.titles == "model",
            metadata=wanted.metadata,
            client_name="http",
            settings=await self._settings(identity, wanted, directory),
        )

    def _model(self, identity: Identity, wanted: NewSession) -> str | None:
        if wanted.tier is not None and (wanted.model is not None or wanted.provider is not None):
            raise Invalid("invalid", "Give a `tier`, or else a `model` or a `provider`.")
        model = wanted.model if wanted.tier is None else model_of_tier(self._service, wanted.tier)
        if model is not None and wanted.provider is None:
            self._service.check_model(identity, model)
        return model

    async def _settings(self, identity: Identity, wanted: NewSession, directory: str | None) -> SettingsChanged | None:
        thinking = self._service.settings.thinking if wanted.thinking is None else budget(wanted.thinking)
        settings = SettingsChanged()
        if thinking is not None:
            settings = msgspec.structs.replace(settings, thinking=thinking)
        granted = await self._operations.store.granted(identity.owner, directory or "")
        if held := self._service.policy(identity).held_rules(granted):
            settings = msgspec.structs.replace(settings, place_rules=held)
        if wanted.provider is not None:
            settings = msgspec.structs.replace(settings, provider=self._provider(identity, wanted.provider))
        return None if settings == SettingsChanged() else settings

    def _provider(self, identity: Identity, given: ProviderGiven) -> Provider:
        self._service.policy(identity).check_provider()
        provider = Provider(
            base_url=given.base_url,
            type=given.type,
            model=given.model,
            api_version=given.api_version,
            has_secrets=given.api_key is not None,
        )
        check_provider(provider)
        return provider

    async def list_all(self, request: Request) -> Response:
        asked = read_query(request, Listing)
        owner = self._service.identity(request).owner
        page = await self._operations.sessions(
            owner, limit=asked.limit, after=asked.cursor, text=asked.q, pinned=asked.pinned
        )
        return answer(SessionList(sessions=tuple(session_view(row) for row in page.rows), next=page.next))

    async def look(self, request: Request) -> Response:
        asked = read_query(request, Paging)
        key = self._service.key(request)
        row = await self._operations.session(key)
        state = await self._operations.state(key)
        end = await self._before_replayed(key, row.head) if asked.leave_out_replayed else row.head
        async with aclosing(backwards(self._operations.store, key, row.head)) as events:
            before = Position(min(end, asked.before - 1 if asked.before is not None else end) + 1)
            page = await page_of(starts_before(events, before), asked.limit)
        return answer(
            SessionDetail(
                session=session_view(row),
                settings=settings_view(state),
                messages=page.messages,
                before=page.before,
                cursor=str(end),
            )
        )

    async def _before_replayed(self, key: Key, head: Position) -> Position:
        """The last position before what the turn's stream would tell; the head, if it would tell nothing."""
        turn = await self._service.replayed_turn(key)
        return Position(turn.first_step - 1) if turn is not None and turn.first_step is not None else head

    async def change(self, request: Request) -> Response:
        key = self._service.key(request)
        changes = await read_body(request, Changes, limit=self._service.settings.max_body_bytes)
        model = self._changed_model(request, changes)
        folder = self._changed_folder(request, changes)
        await self._operations.session(key)
        settings = (changes.model, changes.tier, changes.thinking, changes.mode)
        if any(given is not UNSET for given in settings):
            await self._service.check_use(self._service.identity(request), key)
        if any(given is not UNSET for given in (changes.title, changes.working_directory, *settings)):
            await self._operations.check_storage(key.owner)
        if changes.pinned is not UNSET or changes.metadata is not UNSET:
            # First, as it alone may be refused. After a crash in between the same again does the rest.
            await self._operations.annotate(
                key,
                pinned=None if changes.pinned is UNSET else changes.pinned,
                metadata=None if changes.metadata is UNSET else changes.metadata,
            )
        if changes.title is not UNSET:
            await self._operations.rename(key, changes.title)
        if folder is not None:
            held = self._service.policy(self._service.identity(request)).held_rules
            await self._operations.move(key, folder.path, folder, held=held)
        await self._change_settings(key, changes, model)
        return answer(session_view(await self._operations.session(key)))

    def _changed_model(self, request: Request, changes: Changes) -> str | None:
        if changes.model is not UNSET and changes.tier is not UNSET:
            raise Invalid("invalid", "Give a `model` or a `tier`, not both.")
        model = None if changes.model is UNSET else changes.model
        if changes.tier is not UNSET:
            model = model_of_tier(self._service, changes.tier)
        if model is not None:
            self._service.check_model(self._service.identity(request), model)
        return model

    def _changed_folder(self, request: Request, changes: Changes) -> DirectoryIdentity | None:
        if changes.working_directory is UNSET:
            return None
        identity = self._service.identity(request)
        return self._service.policy(identity).checked_directory(identity.owner, changes.working_directory)

    async def _change_settings(self, key: Key, changes: Changes, model: str | None) -> None:
        if model is not None:
            await self._operations.change_model(key, model)
        if changes.thinking is not UNSET:
            await self._operations.record(key, SettingsChanged(thinking=budget(changes.thinking)))
        if changes.mode is not UNSET:
            await self._operations.change_mode(key, changes.mode)

    async def see(self, request: Request) -> Response:
        key = self._service.key(request)
        wanted = await read_body(request, SeenUpTo, limit=self._service.settings.max_body_bytes)
        position = wanted.position
        if position is None:
            position = (await self._operations.session(key)).head
        seen = await self._operations.see(key, Position(position))
        return answer(Seen(position=seen, unread=(await self._operations.session(key)).is_unread))

    async def delete(self, request: Request) -> Response:
        key = self._service.key(request)
        await self._operations.delete(key)
        await self._service.credentials.forget(key)
        return nothing()

    async def cancel(self, request: Request) -> Response:
        key = self._service.key(request)
        asked = await read_body(request, Cancel, limit=self._service.settings.max_body_bytes)
        position = (await self._operations.session(key)).head
        stopped = await self._operations.stop(
            key,
            stop_id=asked.stop_id,
            keep_queued=asked.keep_queued,
            meant_for=TurnId(asked.turn_id) if asked.turn_id is not None else None,
        )
        if stopped.outcome == "stopping":
            stopped = await self._until_stopped(key, stopped, position)
        return answer(stopped)

    async def _until_stopped(self, key: Key, stopped: Stopped, position: Position) -> Stopped:
        """Wait a little for what the stop did; whoever asks again under the same id is told it later."""
        readings = self._operations.read(key, Cursor(position)).follow()
        try:
            async with asyncio.timeout(self._service.settings.stop_wait_seconds), aclosing(readings):
                async for reading in readings:
                    if isinstance(reading, Delta):
                        continue
                    receipt = await self._operations.store.receipt(key, f"stop:{stopped.stop_id}")
                    if receipt is not None and receipt.state == "promoted":
                        return msgspec.convert(
                            {**msgspec.to_builtins(stopped), "outcome": receipt.outcome or "stopped"}, Stopped
                        )
        except TimeoutError:
            pass
        return stopped


def _client_tool(given: ToolGiven) -> ClientTool:
    return ClientTool(
        name=given.name,
        description=given.description,
        parameters=given.parameters,
        asks_permission=given.asks_permission,
        ends_turn=given.ends_turn,
    )
