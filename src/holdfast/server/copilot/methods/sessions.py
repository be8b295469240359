"""Sessions as wholes: made, resumed, left, listed, forked, deleted."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.events import codec
from holdfast.events.body import Body
from holdfast.events.ids import Key, Position, SessionId, random_id
from holdfast.events.request import UserInputRequested
from holdfast.events.session import ClientTool, Provider, SettingsChanged
from holdfast.server.copilot.call import Call, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.copilot.model_choice import changes, choose
from holdfast.server.copilot.options import SessionParams, parsed
from holdfast.server.copilot.peer import Answer
from holdfast.server.copilot.projection import Projection, WireEvent, iso, still_said
from holdfast.server.errors import Invalid, NotFound
from holdfast.server.forks import fork_session
from holdfast.server.operations import SessionOptions
from holdfast.server.presence import ANSWERS_QUESTIONS, Arrival
from holdfast.session.permissions import ANSWERS_PERMISSIONS
from holdfast.session.state import OpenRequest, State, ToolCall
from holdfast.store.file_access import make_private_folder
from holdfast.store.log_pages import whole_log
from holdfast.store.store import Row
from holdfast.tools.working_directory import is_still

PAGE = 200


@method("session.create")
async def create(call: Call) -> Any:
    params = parsed(call.params)
    async with call.connection.attaching:
        key = Key(call.connection.owner, SessionId(params.session_id or random_id()))
        options = await _options(call, key, params)
        made = await call.service.operations.create_if_missing(key.owner, options, key.session)
        before = None if made else await call.service.operations.state(key)
        if before is not None:
            params = params.going_on_with(before.provider, before.model)
        attached, row = await _placed(call, key, params, before, lambda: _made(call, key, params, before))
    if made:
        call.service.announce("created", key, call.service.about(row))
    return Answer(_result(call, row, before.mode if before else "interactive"), attached.member.begin)


@method("session.resume")
async def resume(call: Call) -> Any:
    params = parsed(call.params)
    pending: list[tuple[OpenRequest, ToolCall]] = []
    async with call.connection.attaching:
        key = call.key
        try:
            before = await call.service.operations.state(key)
        except NotFound as error:
            raise call.failed(f"Failed to load session events: Session not found: {key.session}") from error
        params = params.going_on_with(before.provider, before.model)
        call.service.operations.check_settings(await _settings(call, key, params, before))
        if params.model is not None:
            await choose(call.service.models, params, before, params.model)
        work = lambda: _resumed(call, params, pending)  # noqa: E731
        attached, row = await _placed(call, key, params, before, work)
    return Answer(_result(call, row, before.mode), lambda: _go_on(attached, before, pending))


async def _placed(
    call: Call, key: Key, params: SessionParams, before: State | None, work: Callable[[], Awaitable[None]]
) -> tuple[Attached, Row]:
    """Let the client watch, then do the rest, so that it is told of its own coming as everybody is. Whatever goes wrong
    on the way, or is given up: what was before is so again, and no trace of the client is left."""
    service = call.service
    arrival = _arrival(call, params)
    service.operations.check_settings(SettingsChanged(client_tools=arrival.tools))
    previous = call.connection.attached.get(key.session)
    position = before.head if before is not None else Position(0)
    attached = await service.place(call.connection, key, params, arrival, position=position, state=before)
    try:
        await work()
        return attached, await service.operations.session(key)
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(service.undo(call.connection, attached, previous)))
        raise


async def _made(call: Call, key: Key, params: SessionParams, before: State | None) -> None:
    """One's own session of that id may be there already: it is gone on with, and nothing of it is replaced."""
    arrival = _arrival(call, params)
    await call.service.presence.arrive(key, arrival)
    if before is not None:
        process = call.service.operations.store.process

        async def settings(state: State) -> SettingsChanged:
            found = await _settings(call, key, params, state)
            return msgspec.structs.replace(found, attached_process=process)

        await call.service.presence.offer(key, arrival, settings)
    await _entrust(call, key, params, before.provider if before else None)


async def _resumed(
    call: Call,
    params: SessionParams,
    pending: list[tuple[OpenRequest, ToolCall]],
) -> None:
    key, service = call.key, call.service
    arrival = _arrival(call, params)

    async def settings(state: State) -> SettingsChanged:
        return await _settings(call, key, params, state)

    async def switched(state: State) -> list[Body]:
        model, provider = await choose(service.models, params, state, params.model)
        changed = UNSET if provider == state.provider else provider
        return changes(state, model, SettingsChanged(provider=changed))

    resumed = await service.presence.resume(
        key, arrival, continue_pending_work=params.continue_pending_work, settings=settings
    )
    await _entrust(call, key, params, resumed.state.provider)
    if params.model is not None:
        await service.operations.change(key, switched)
    if params.continue_pending_work:
        for request, found in await service.presence.deliverable(key, arrival.tools):
            if request.kind == "client_tool":
                await service.presence.deliver_again(key, request)
            pending.append((request, found))


def _go_on(attached: Attached, state: State, pending: list[tuple[OpenRequest, ToolCall]]) -> None:
    """The client has its answer: what happened meanwhile follows, then whatever it takes over."""
    attached.member.begin()
    for request, found in pending:
        if request.kind == "client_tool":
            handed = {
                "requestId": request.request_id,
                "sessionId": attached.key.session,
                "toolCallId": found.tool_call_id,
                "toolName": found.name,
                "arguments": codec.arguments(found.arguments),
                "workingDirectory": state.working_directory,
            }
            attached.hub.tell("external_tool.requested", handed, only=attached.member)
        elif attached.member.answers_questions:
            attached.hub.ask(attached.member, _question(request.request_id, found.tool_call_id, found.arguments))


def _question(request_id: Any, tool_call_id: Any, arguments: str) -> UserInputRequested:
    asked = codec.arguments(arguments)
    asked = asked if isinstance(asked, dict) else {}
    return UserInputRequested(
        request_id=request_id,
        tool_call_id=tool_call_id,
        question=str(asked.get("question", "")),
        choices=tuple(str(choice) for choice in asked.get("choices") or ()),
        allow_freeform=bool(asked.get("allow_freeform", True)),
    )


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
        model=(await choose(service.models, params, None, params.model))[0],
        system_message=params.system_message.text() if params.system_message else None,
        working_directory=directory,
        tools=params.built_in_tools(service.settings.built_in),
        client_tools=_client_tools(call, params),
        title=params.name,
        conventions="copilot",
        client_name=params.client_name or "",
        settings=SettingsChanged(
            system_mode="replace" if params.system_message and params.system_message.mode == "replace" else "append",
            reasoning_effort=params.reasoning_effort,
            provider=brought.provider() if brought else None,
            stream=bool(params.streaming),
            place_rules=await service.operations.store.granted(key.owner, directory),
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
    place = directory if isinstance(directory, str) else state.working_directory or ""
    rules = await call.service.operations.store.granted(key.owner, place)
    return SettingsChanged(
        system_message=said.text() if said else UNSET,
        system_mode=("replace" if said.mode == "replace" else "append") if said else UNSET,
        working_directory=UNSET if _works_there(state, directory) else directory,
        tools=_built_in_again(call, params, state, others_ask),
        place_rules=rules,
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


def _works_there(state: State, directory: str | UnsetType) -> bool:
    """Also in what took the place of its folder: the client that names it again chooses that."""
    is_there = directory == state.working_directory
    return is_there and isinstance(directory, str) and is_still(state.directory_identity, directory)


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


async def _entrust(call: Call, key: Key, params: SessionParams, before: Provider | None) -> None:
    """Keep what the client gave for its model calls, after it was written down what they are for: nobody who lacks
    them runs the session meanwhile. What another client gave stays, as long as the process that has it lives."""
    secrets = params.secrets()
    if secrets is not None:
        await call.service.credentials.put(key, secrets)
        return
    if params.own_provider() is not None:
        await call.service.credentials.forget(key)
        return
    kept = await call.service.operations.store.secret(key)
    if kept is None or (before is not None and before.has_secrets):
        return
    keeper, sealed = kept
    if not sealed and not (keeper and await call.service.operations.store.is_alive(keeper)):
        await call.service.credentials.forget(key)


def _result(call: Call, row: Row, mode: str) -> dict[str, Any]:
    folder = call.service.folder(row.key)
    make_private_folder(folder)
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
    call.service.commands.forget_session(key)
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
    found = await whole_log(call.service.operations.store, key)
    if found is None:
        raise call.failed(f"Session not found: {key.session}")
    projection = Projection(key.session, call.service.settings.instructions)
    shown = [wire for event in still_said(found[1]) for wire in projection.project(event)]
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
