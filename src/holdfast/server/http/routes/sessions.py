"""Sessions: create, list, show, change and delete them."""

from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from holdfast.commands.isolation import REFUSED
from holdfast.events.ids import Key, Owner, Position, SessionId, random_id
from holdfast.events.session import ClientTool, DirectoryIdentity, Mode, SettingsChanged
from holdfast.protocol.provider import OwnProvider
from holdfast.protocol.session import SeenView, SessionDetail, SessionList, SessionView
from holdfast.server.chosen_id import ChosenId
from holdfast.server.errors import Invalid
from holdfast.server.given_provider import WIRES, provider_given, secrets_given
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.errors import ApiError
from holdfast.server.http.message_page import events_before, page_of
from holdfast.server.http.wire import json_response, no_content
from holdfast.server.log_tail import events_backwards
from holdfast.server.message_options import Thinking, Tier, thinking_tokens
from holdfast.server.operations import Operations, SessionOptions
from holdfast.server.views.sessions import session_view, settings_view
from holdfast.session.permissions import MAX_RULE_CHARACTERS, MAX_RULES_GIVEN

MAX_TOOLS: Final = 128

Id = Annotated[str, Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
EntryName = Annotated[str, Meta(min_length=1, max_length=64)]


class ClientToolBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that a client runs: the session requests each call, and waits for its answer."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: Annotated[str, Meta(max_length=10_000)] = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    """A JSON schema."""
    asks_permission: bool = False
    ends_turn: bool = False


class ProviderBody(OwnProvider, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The session's own provider. Its key is stored separately, never in the log."""

    base_url: Annotated[str, Meta(min_length=1, max_length=2_000)]
    wire: Annotated[str, Meta(max_length=20, extra_json_schema={"enum": list(WIRES)})] = "chat"
    """The protocol of the API: chat completions, OpenAI's Responses or Anthropic's Messages."""
    model: Name | None = None
    api_version: Name | None = None
    api_key: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None


class NewSessionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The choices for a new session. A choice that is left out follows the server's configuration."""

    id: ChosenId | None = None
    """An id of the client's choice: the session is created once, however often this is repeated."""
    title: Name | None = None
    model: Name | None = None
    system_message: Annotated[str, Meta(max_length=200_000)] | None = None
    working_directory: Annotated[str, Meta(min_length=1, max_length=4_096)] | None = None
    tools: Annotated[tuple[Name, ...], Meta(max_length=MAX_TOOLS)] | None = None
    client_tools: Annotated[tuple[ClientToolBody, ...], Meta(max_length=MAX_TOOLS)] = ()
    allow: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=MAX_RULE_CHARACTERS)], ...], Meta(max_length=MAX_RULES_GIVEN)
    ] = ()
    """Permission rules granted from the start, such as `write(docs/*)`."""
    dry_run: bool = False
    tier: Tier | None = None
    """A tier of the server, instead of the name of a model."""
    thinking: Thinking | None = None
    """How long the model may think, unless a message says otherwise."""
    parent: Id | None = None
    metadata: dict[EntryName, str] = {}
    provider: ProviderBody | None = None


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    cursor: str | None = None
    q: Annotated[str, Meta(max_length=200)] = ""
    """Only sessions with this in the title, or with all of its words in one message of a person or the model."""
    pinned: bool | None = None
    """Only pinned sessions, or only the others."""


class MessagePageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    before: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    """Only messages before this position."""
    leave_out_replayed: bool = False
    """Leave out the answer that the turn's stream would replay: for a client that reads that stream as well."""
    usage: bool = False
    """Sum up the usage of the session's model calls, in `context`."""


class SessionPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a session. Fields that are left out stay as they are."""

    title: Name | UnsetType = UNSET
    model: Name | UnsetType = UNSET
    tier: Tier | UnsetType = UNSET
    thinking: Thinking | UnsetType | None = UNSET
    """Null: the model's default."""
    mode: Mode | UnsetType = UNSET
    working_directory: Annotated[str, Meta(min_length=1, max_length=4_096)] | UnsetType = UNSET
    """The session works here from its next step on. The same path again chooses the folder that now has that path."""
    pinned: bool | UnsetType = UNSET
    metadata: dict[EntryName, str | None] | UnsetType = UNSET
    """Merged into the session's metadata: a value is set, null removes the entry, the other entries stay."""


class SeenBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    position: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """The position of the last event that the owner has seen; left out: the log's head."""


@endpoint(
    "POST",
    "/v1/sessions",
    summary="Create a session",
    body=NewSessionBody,
    results={201: SessionView, 200: SessionView},
)
async def create(call: HttpCall) -> Response:
    body = await call.body(NewSessionBody)
    options = await _options(call, body)
    session_id = SessionId(body.id if body.id is not None else random_id())
    key = Key(call.identity.owner, session_id)
    is_new = await call.operations.create_if_missing(key.owner, options, session_id)
    if body.provider is not None and (secrets := secrets_given(body.provider)) is not None:
        # After a crash before this the session waits for its key; the same request again brings it.
        await call.service.credentials.put(key, secrets)
    view = session_view(await call.operations.session(key))
    return json_response(view, 201 if is_new else 200, {"location": f"/v1/sessions/{session_id}"})


async def created_session(operations: Operations, owner: Owner, session_id: SessionId) -> Response:
    """The response to a request that created a session."""
    row = await operations.session(Key(owner, session_id))
    return json_response(session_view(row), 201, {"location": f"/v1/sessions/{session_id}"})


async def _options(call: HttpCall, body: NewSessionBody) -> SessionOptions:
    """The choices of the body that the role may make, and the server's choices for the rest."""
    owner, policy, settings = call.identity.owner, call.policy, call.service.settings
    model = _model(call, body)
    policy.check_rules(body.allow)
    for name in body.tools or ():
        if name not in settings.known_tools:
            raise Invalid("tool_unknown", f"There is no tool {name} here.")
        if name in settings.refused_tools:
            raise ApiError(403, "commands_refused", REFUSED)
    if body.parent is not None:
        await call.operations.session(Key(owner, SessionId(body.parent)))
    directory, folder = settings.directory, None
    if body.working_directory is not None:
        folder = policy.checked_directory(owner, body.working_directory)
        directory = folder.path
    return SessionOptions(
        model=model or (None if body.provider else settings.model),
        system_message=body.system_message,
        working_directory=directory,
        directory_identity=folder,
        tools=policy.chosen_tools(body.tools, settings.tools),
        client_tools=tuple(_client_tool(tool) for tool in body.client_tools),
        allow=body.allow,
        dry_run=body.dry_run,
        title=body.title,
        parent=SessionId(body.parent) if body.parent is not None else None,
        wants_title=settings.titles == "model",
        metadata=body.metadata,
        client_name="http",
        settings=await _settings(call, body, directory),
    )


def _model(call: HttpCall, body: NewSessionBody) -> str | None:
    if body.tier is not None and (body.model is not None or body.provider is not None):
        raise Invalid("invalid", "Give a `tier`, or else a `model` or a `provider`.")
    model = body.model if body.tier is None else call.service.settings.model_of_tier(body.tier)
    if model is not None and body.provider is None:
        call.check_model(model)
    return model


async def _settings(call: HttpCall, body: NewSessionBody, directory: str | None) -> SettingsChanged | None:
    thinking = call.service.settings.thinking if body.thinking is None else thinking_tokens(body.thinking)
    settings = SettingsChanged()
    if thinking is not None:
        settings = msgspec.structs.replace(settings, thinking=thinking)
    granted = await call.operations.store.granted(call.identity.owner, directory or "")
    if rules := call.policy.held_rules(granted):
        settings = msgspec.structs.replace(settings, place_rules=rules)
    if body.provider is not None:
        call.policy.check_provider()
        settings = msgspec.structs.replace(settings, provider=provider_given(body.provider))
    return None if settings == SettingsChanged() else settings


def _client_tool(body: ClientToolBody) -> ClientTool:
    return ClientTool(
        name=body.name,
        description=body.description,
        parameters=body.parameters,
        asks_permission=body.asks_permission,
        ends_turn=body.ends_turn,
    )


@endpoint("GET", "/v1/sessions", summary="List or search the caller's sessions", query=SessionQuery, result=SessionList)
async def list_sessions(call: HttpCall) -> Response:
    query = call.query(SessionQuery)
    page = await call.operations.sessions(
        call.identity.owner, limit=query.limit, after=query.cursor, text=query.q, pinned=query.pinned
    )
    views = tuple(session_view(row) for row in page.rows)
    return json_response(SessionList(sessions=views, next=page.next, unsearched=page.unsearched))


@endpoint(
    "GET",
    "/v1/sessions/{session_id}",
    summary="A session with a page of its messages",
    query=MessagePageQuery,
    result=SessionDetail,
)
async def show(call: HttpCall) -> Response:
    query = call.query(MessagePageQuery)
    row = await call.operations.session(call.key)
    state = await call.operations.state(call.key)
    end = await _before_replayed(call, row.head) if query.leave_out_replayed else row.head
    async with aclosing(events_backwards(call.operations.store, call.key, row.head)) as events:
        before = Position(min(end, query.before - 1 if query.before is not None else end) + 1)
        page = await page_of(events_before(events, before), query.limit, pinned=state.pinned)
    return json_response(
        SessionDetail(
            session=session_view(row),
            settings=settings_view(state),
            messages=page.messages,
            before=page.before,
            cursor=str(end),
            context=await call.operations.context(call.key, state, with_usage=query.usage),
        )
    )


async def _before_replayed(call: HttpCall, head: Position) -> Position:
    """The last position before the answer that the turn's stream would replay; the head, if it would replay none."""
    turn = await call.service.replayed_turn(call.key)
    return Position(turn.first_step - 1) if turn is not None and turn.first_step is not None else head


@endpoint(
    "PATCH",
    "/v1/sessions/{session_id}",
    summary="Change a session's title, pin, metadata or settings",
    body=SessionPatch,
    result=SessionView,
)
async def change(call: HttpCall) -> Response:
    key, operations = call.key, call.operations
    patch = await call.body(SessionPatch)
    model = _changed_model(call, patch)
    folder = _changed_folder(call, patch)
    await operations.session(key)
    settings = (patch.model, patch.tier, patch.thinking, patch.mode, patch.working_directory)
    if any(value is not UNSET for value in settings):
        await call.check_use()
    elif patch.title is not UNSET or patch.metadata is not UNSET:
        await call.check_change()
    if any(value is not UNSET for value in (patch.title, *settings)):
        await operations.check_storage(key.owner)
    if patch.pinned is not UNSET or patch.metadata is not UNSET:
        # First, as it alone may be refused. After a crash in between the same request again does the rest.
        await operations.annotate(
            key,
            pinned=None if patch.pinned is UNSET else patch.pinned,
            metadata=None if patch.metadata is UNSET else patch.metadata,
        )
    if patch.title is not UNSET:
        await operations.rename(key, patch.title)
    if folder is not None:
        await operations.move(key, folder.path, folder, held=call.policy.held_rules)
    if model is not None:
        await operations.change_model(key, model)
    if patch.thinking is not UNSET:
        await operations.record(key, SettingsChanged(thinking=thinking_tokens(patch.thinking)))
    if patch.mode is not UNSET:
        await operations.change_mode(key, patch.mode)
    return json_response(session_view(await operations.session(key)))


def _changed_model(call: HttpCall, patch: SessionPatch) -> str | None:
    if patch.model is not UNSET and patch.tier is not UNSET:
        raise Invalid("invalid", "Give a `model` or a `tier`, not both.")
    model = None if patch.model is UNSET else patch.model
    if patch.tier is not UNSET:
        model = call.service.settings.model_of_tier(patch.tier)
    if model is not None:
        call.check_model(model)
    return model


def _changed_folder(call: HttpCall, patch: SessionPatch) -> DirectoryIdentity | None:
    if patch.working_directory is UNSET:
        return None
    return call.policy.checked_directory(call.identity.owner, patch.working_directory)


@endpoint("DELETE", "/v1/sessions/{session_id}", summary="Delete a session and all of its log", results={204: None})
async def delete(call: HttpCall) -> Response:
    await call.check_change()
    await call.operations.delete(call.key)
    await call.service.credentials.forget(call.key)
    return no_content()


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/seen",
    summary="Mark a session as seen up to a position",
    body=SeenBody,
    result=SeenView,
)
async def see(call: HttpCall) -> Response:
    position = (await call.body(SeenBody)).position
    if position is None:
        position = (await call.operations.session(call.key)).head
    seen = await call.operations.see(call.key, Position(position))
    return json_response(SeenView(position=seen, unread=(await call.operations.session(call.key)).is_unread))
