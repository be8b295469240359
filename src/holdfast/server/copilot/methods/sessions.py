"""Sessions as wholes: made, resumed, left, listed, forked, deleted."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.events.ids import Key, Position, SessionId, random_id
from holdfast.events.request import UserInputRequested
from holdfast.events.session import ClientTool, Provider, SettingsChanged
from holdfast.server.copilot.call import Call, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.copilot.options import SessionParams, parsed
from holdfast.server.copilot.peer import Answer
from holdfast.server.copilot.projection import Projection, WireEvent, as_json, iso, still_said
from holdfast.server.errors import Invalid, NotFound
from holdfast.server.forking import fork_session
from holdfast.server.operations import SessionOptions
from holdfast.server.presence import ANSWERS_PERMISSIONS, ANSWERS_QUESTIONS, Arrival
from holdfast.session.state import State
from holdfast.store.store import Row

PAGE = 200


@method("session.create")
async def create(call: Call) -> Any:
    params = parsed(call.params)
    async with call.connection.attaching:
        key = Key(call.connection.owner, SessionId(params.session_id or random_id()))
        options = await _options(call, key, params)
        made = await call.service.operations.create_if_missing(key.owner, options, key.session)
        await _entrust(call, key, params, None)
        await call.service.leave(call.connection, key.session)
        attached = await (_at_new(call, key, params) if made else _at_existing(call, key, params, options))
    row = await call.service.operations.session(key)
    if made:
        call.service.announce("created", key, call.service.about(row))
    return Answer(_result(call, row, "interactive"), attached.member.begin)


@method("session.resume")
async def resume(call: Call) -> Any:
    params = parsed(call.params)
    async with call.connection.attaching:
        attached, state = await _resumed(call, params)
    row = await call.service.operations.session(attached.key)
    return Answer(_result(call, row, state.mode), lambda: _go_on(attached, state, params))


async def _resumed(call: Call, params: SessionParams) -> tuple[Attached, State]:
    key = call.key
    service = call.service
    try:
        before = await service.operations.state(key)
    except NotFound as error:
        raise call.failed(f"Failed to load session events: Session not found: {key.session}") from error
    await call.service.leave(call.connection, key.session)
    arrival = _arrival(call, params)
    settings = await _settings(call, key, params, before)
    # It watches before it is noted, so that it is told of its own return, as everybody is.
    attached = await service.place(call.connection, key, params, position=before.head, state=before)
    try:
        resumed = await service.presence.resume(
            key, arrival, continue_pending_work=params.continue_pending_work, settings=settings
        )
    except BaseException:
        await service.unplace(call.connection, attached)
        raise
    await _entrust(call, key, params, resumed.state.provider)
    if params.model is not None:
        await _change_model(call, key, await _model(call, params), resumed.state)
    if params.continue_pending_work and not resumed.interrupted:
        for request in service.presence.deliverable(resumed.state, arrival.tools):
            await service.presence.deliver_again(key, request)
    return attached, resumed.state


def _go_on(attached: Attached, state: State, params: SessionParams) -> None:
    """The client has its answer: what happened meanwhile follows, then whatever it takes over."""
    attached.member.begin()
    if not params.continue_pending_work:
        return
    offered = {tool.name for tool in params.tools or () if not tool.tool().delivered_once}
    reply = state.reply()
    for request in state.requests.values():
        found = reply.call(request.tool_call_id) if reply else None
        if request.kind == "client_tool" and found is not None and found.name in offered:
            handed = {
                "requestId": request.request_id,
                "sessionId": attached.key.session,
                "toolCallId": found.tool_call_id,
                "toolName": found.name,
                "arguments": as_json(found.arguments),
                "workingDirectory": state.working_directory,
            }
            attached.hub.tell("external_tool.requested", handed, only=attached.member)
        elif request.kind == "question" and found is not None and attached.member.answers_questions:
            attached.hub.ask(attached.member, _question(request.request_id, found.tool_call_id, found.arguments))


def _question(request_id: Any, tool_call_id: Any, arguments: str) -> UserInputRequested:
    asked = as_json(arguments)
    asked = asked if isinstance(asked, dict) else {}
    return UserInputRequested(
        request_id=request_id,
        tool_call_id=tool_call_id,
        question=str(asked.get("question", "")),
        choices=tuple(str(choice) for choice in asked.get("choices") or ()),
        allow_freeform=bool(asked.get("allow_freeform", True)),
    )


async def _at_new(call: Call, key: Key, params: SessionParams) -> Attached:
    await call.service.presence.arrive(key, _arrival(call, params))
    return await call.service.place(call.connection, key, params, position=Position(0), state=None)


async def _at_existing(call: Call, key: Key, params: SessionParams, options: SessionOptions) -> Attached:
    """One's own session of that id is there already: it is gone on with, and nothing of it is replaced."""
    state = await call.service.operations.state(key)
    arrival = _arrival(call, params)
    await call.service.presence.arrive(key, arrival)
    tools = await call.service.presence.tools_with(key, state, arrival)
    settings = await _settings(call, key, params, state)
    await call.service.operations.record(key, msgspec.structs.replace(settings, client_tools=tools))
    return await call.service.place(call.connection, key, params, position=state.head, state=state)


def _arrival(call: Call, params: SessionParams) -> Arrival:
    return Arrival(
        attachment_id=call.connection.peer.id,
        tools=_client_tools(call, params),
        capabilities=(
            *((ANSWERS_PERMISSIONS,) if params.request_permission else ()),
            *((ANSWERS_QUESTIONS,) if params.request_user_input else ()),
        ),
    )


def _client_tools(call: Call, params: SessionParams) -> tuple[ClientTool, ...]:
    return params.client_tools(frozenset(call.service.settings.built_in))


async def _options(call: Call, key: Key, params: SessionParams) -> SessionOptions:
    service = call.service
    directory = _directory(call, params.working_directory)
    brought = params.own_provider()
    return SessionOptions(
        own_token=params.git_hub_token is not None,
        model=await _model(call, params),
        system_message=params.system_message.text() if params.system_message else None,
        working_directory=directory,
        tools=params.built_in_tools(service.settings.built_in),
        client_tools=_client_tools(call, params),
        allow=await service.operations.store.granted(key.owner, directory),
        title=params.name,
        conventions="copilot",
        client_name=params.client_name or "",
        settings=SettingsChanged(
            system_mode="replace" if params.system_message and params.system_message.mode == "replace" else "append",
            reasoning_effort=params.reasoning_effort,
            provider=brought.provider() if brought else None,
            stream=bool(params.streaming),
        ),
    )


async def _settings(call: Call, key: Key, params: SessionParams, state: State) -> SettingsChanged:
    """What a client that comes back changes: only what it says."""
    said = params.system_message
    directory: str | UnsetType = UNSET
    if params.working_directory is not None:
        directory = _directory(call, params.working_directory)
    brought = params.own_provider()
    present = await call.service.operations.store.attachments(key)
    others_ask = any(ANSWERS_QUESTIONS in found.capabilities for found in present)
    rules = await call.service.operations.store.granted(key.owner, state.working_directory or "")
    return SettingsChanged(
        system_message=said.text() if said else UNSET,
        system_mode=("replace" if said.mode == "replace" else "append") if said else UNSET,
        working_directory=UNSET if directory == state.working_directory else directory,
        tools=_built_in_again(call, params, state, others_ask),
        allow=tuple(dict.fromkeys((*state.allow, *rules))) if set(rules) - set(state.allow) else UNSET,
        reasoning_effort=params.reasoning_effort if params.reasoning_effort is not None else UNSET,
        provider=brought.provider() if brought else UNSET,
        stream=UNSET if params.streaming is None else params.streaming,
        client_name=params.client_name if params.client_name is not None else UNSET,
    )


def _built_in_again(call: Call, params: SessionParams, state: State, others_ask: bool) -> tuple[str, ...]:
    """Filters are those of the client that came last; without any the tools stay as they were."""
    if params.available_tools is not None or params.excluded_tools is not None or state.tools is None:
        return params.built_in_tools(call.service.settings.built_in)
    if params.request_user_input and "ask_user" not in state.tools:
        return (*state.tools, *(name for name in call.service.settings.built_in if name == "ask_user"))
    if others_ask or params.request_user_input:
        return state.tools
    return tuple(name for name in state.tools if name != "ask_user")


def _directory(call: Call, given: str | None) -> str:
    if given is None:
        return str(call.service.settings.directory)
    if "\0" in given:
        raise Invalid("directory_invalid", "A working directory can't have a NUL character in its name.")
    wanted = call.service.settings.directory / given
    try:
        found = wanted.resolve() if wanted.is_dir() else None
    except (OSError, RuntimeError):  # A name that no directory can have, or links that lead in a circle.
        found = None
    if found is None:
        raise Invalid("directory_not_found", f"The working directory {given} does not exist. Name one that does.")
    return str(found)


async def _model(call: Call, params: SessionParams) -> str:
    """A provider of the client's own knows what models it has."""
    brought = params.own_provider()
    if brought is None:
        return await call.service.models.chosen(params.model)
    name = params.model or brought.model_id or brought.wire_model
    if name is None:
        raise Invalid("model_missing", "With a provider of your own, say which model to ask for.")
    return name


async def _entrust(call: Call, key: Key, params: SessionParams, before: Provider | None) -> None:
    """Keep what the client gave for its model calls, after it was written down what they are for: nobody who lacks
    them runs the session meanwhile. A session that needs nothing of its client may be run by anyone."""
    secrets = params.secrets()
    brought = params.own_provider()
    provider = brought.provider() if brought else before
    if secrets is not None:
        await call.service.credentials.put(key, secrets)
    elif provider is None or not provider.has_secrets:
        await call.service.credentials.forget(key)


async def _change_model(call: Call, key: Key, model: str, state: State) -> None:
    if model != state.model:
        await call.service.operations.change_model(key, model, previous=state.model)


def _result(call: Call, row: Row, mode: str) -> dict[str, Any]:
    folder = call.service.folder(row.key)
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "sessionId": row.key.session,
        "nativeSessionId": row.key.session,
        "startTime": iso(row.created_at),
        "isRemote": False,
        "mode": mode,
        "workspacePath": str(folder),
        "capabilities": {"ui": {"elicitation": False, "mcpApps": False, "canvases": False}, "extensions": False},
    }


@method("session.destroy", "session.detach")
async def detach(call: Call) -> Any:
    async with call.connection.attaching:
        if not await call.service.leave(call.connection, call.session_id, on_purpose=True):
            return {"success": False, "error": f"Session not found: {call.session_id}"}
    return {"success": True}


@method("session.shutdown")
async def shutdown(call: Call) -> Any:
    found = call.attached()
    kind: Literal["routine", "error"] = "error" if call.params.get("type") == "error" else "routine"
    await call.service.operations.stop(found.key, keep_queued=True, cause="suspended")
    await call.service.shut_down(found.key, shutdown_type=kind, reason=call.given("reason", str, ""))
    return None


@method("session.delete")
async def delete(call: Call) -> Any:
    key = call.key
    try:
        await call.service.operations.delete(key)
    except NotFound:
        return {"success": False, "error": f"Session file not found for {key.session}"}
    for connection in tuple(call.service.connections):
        if connection.owner == key.owner:
            await call.service.leave(connection, key.session)
    await call.service.credentials.forget(key)
    call.service.remove_folder(key)
    call.service.announce("deleted", key)
    return {"success": True}


@method("session.list")
async def list_sessions(call: Call) -> Any:
    wanted = call.given("filter", dict[str, Any], {})
    if any(wanted.get(name) is not None for name in ("gitRoot", "repository", "branch")):
        return {"sessions": []}
    listed = []
    after = None
    while True:
        page = await call.service.operations.sessions(call.connection.owner, limit=PAGE, after=after)
        for row in page.rows:
            described = await _described(call, row)
            if described is not None and wanted.get("cwd") in (None, described["context"]["cwd"]):
                listed.append(described)
        after = page.next
        if after is None:
            return {"sessions": listed}


@method("session.getMetadata")
async def get_metadata(call: Call) -> Any:
    row = await call.service.operations.store.row(call.key)
    described = await _described(call, row) if row is not None else None
    return {} if described is None else {"session": described}


@method("session.getLastId")
async def get_last_id(call: Call) -> Any:
    after = None
    while True:
        page = await call.service.operations.sessions(call.connection.owner, limit=20, after=after)
        for row in page.rows:
            if await _described(call, row) is not None:
                return {"sessionId": row.key.session}
        after = page.next
        if after is None:
            return {}


async def _described(call: Call, row: Row) -> dict[str, Any] | None:
    """A session as lists have it; None for one to which nothing was ever said."""
    try:
        state = await call.service.operations.state(row.key)
    except NotFound:
        return None
    if not state.history and state.turn is None and not row.waiting_messages:
        return None
    return {
        "sessionId": row.key.session,
        "startTime": iso(row.created_at),
        "modifiedTime": iso(row.updated_at),
        "isRemote": False,
        "isDetached": False,
        "summary": row.title,
        "name": row.title,
        "clientName": state.client_name or "sdk",
        "context": {"cwd": state.working_directory or ""},
    }


@method("session.setForeground")
async def set_foreground(call: Call) -> Any:
    row = await call.service.operations.store.row(call.key)
    if row is None:
        return {"success": False, "error": f"Session not found: {call.session_id}"}
    before, call.service.foreground = call.service.foreground, call.session_id
    if before is not None and before != call.session_id:
        call.service.announce("background", Key(call.connection.owner, before))
    call.service.announce("foreground", call.key, call.service.about(row))
    return {"success": True}


@method("session.getForeground")
async def get_foreground(call: Call) -> Any:
    found = call.service.foreground
    return {} if found is None else {"sessionId": found}


@method("session.getMessages")
async def get_messages(call: Call) -> Any:
    call.attached()
    return {"events": await persisted(call, call.key)}


async def persisted(call: Call, key: Key) -> list[WireEvent]:
    """All of a session's events that may be read again, in order."""
    loaded = await call.service.operations.store.load(key, fold_version=-1)
    if loaded is None:
        raise call.failed(f"Session not found: {key.session}")
    projection = Projection(key.session, call.service.settings.instructions)
    shown = [wire for event in still_said(loaded.events) for wire in projection.project(event)]
    return [wire for wire in shown if not wire.ephemeral]


@method("sessions.fork")
async def fork(call: Call) -> Any:
    source = call.key
    row = await call.service.operations.session(source)
    before = call.given("toEventId", str, "") or None
    name = call.given("name", str, "") or f"{row.title or f'Session {source.session[:8]}'} (fork)"
    try:
        made = await fork_session(call.service.operations, source, before=before, title=name)
    except NotFound as error:
        raise call.failed(error.message) from error
    key = Key(source.owner, made)
    row = await call.service.operations.session(key)
    call.service.announce("created", key, call.service.about(row))
    return {"sessionId": made, "name": name}
