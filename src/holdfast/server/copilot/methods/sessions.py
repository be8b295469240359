"""Creates, resumes, leaves, forks and deletes sessions."""

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
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.copilot.model_choice import changes, choose
from holdfast.server.copilot.options import SessionParams, parsed
from holdfast.server.copilot.peer import RpcResult
from holdfast.server.copilot.projection import iso
from holdfast.server.errors import Invalid, NotFound
from holdfast.server.operations import SessionOptions
from holdfast.server.presence import ANSWERS_QUESTIONS, Arrival
from holdfast.session.permissions import ANSWERS_PERMISSIONS
from holdfast.session.state import OpenRequest, State, ToolCall
from holdfast.store.file_access import make_private_folder
from holdfast.store.store import Row
from holdfast.tools.working_directory import is_still


@method("session.create")
async def create(call: RpcCall) -> Any:
    params = parsed(call.params)
    async with call.connection.attaching:
        key = Key(call.connection.owner, SessionId(params.session_id or random_id()))
        options = await _options(call, key, params)
        is_new = await call.service.operations.create_if_missing(key.owner, options, key.session)
        before = None if is_new else await call.service.operations.state(key)
        if before is not None:
            params = params.with_session_model(before.provider, before.model)
        attached, row = await _attach(call, key, params, before, lambda: _finish_create(call, key, params, before))
    if is_new:
        call.service.announce("created", key, call.service.lifecycle_metadata(row))
    return RpcResult(_result(call, row, before.mode if before else "interactive"), attached.member.begin)


@method("session.resume")
async def resume(call: RpcCall) -> Any:
    params = parsed(call.params)
    pending: list[tuple[OpenRequest, ToolCall]] = []
    async with call.connection.attaching:
        key = call.key
        try:
            before = await call.service.operations.state(key)
        except NotFound as error:
            raise call.failed(f"Failed to load session events: Session not found: {key.session}") from error
        params = params.with_session_model(before.provider, before.model)
        call.service.operations.check_settings(await _settings(call, key, params, before))
        if params.model is not None:
            await choose(call.service.models, params, before, params.model)
        work = lambda: _finish_resume(call, params, pending)  # noqa: E731
        attached, row = await _attach(call, key, params, before, work)
    return RpcResult(_result(call, row, before.mode), lambda: _deliver_pending(attached, before, pending))


async def _attach(
    call: RpcCall, key: Key, params: SessionParams, before: State | None, work: Callable[[], Awaitable[None]]
) -> tuple[Attached, Row]:
    """Attach the client to the hub, then do `work`, so that the client gets the events about its own arrival like every
    other client. An error or a cancellation rolls all of it back."""
    service = call.service
    arrival = _arrival(call, params)
    service.operations.check_settings(SettingsChanged(client_tools=arrival.tools))
    previous = call.connection.attached.get(key.session)
    position = before.head if before is not None else Position(0)
    attached = await service.attach(call.connection, key, params, arrival, position=position, state=before)
    try:
        await work()
        return attached, await service.operations.session(key)
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(service.undo(call.connection, attached, previous)))
        raise


async def _finish_create(call: RpcCall, key: Key, params: SessionParams, before: State | None) -> None:
    """Register the client. A session of that id that the owner already has goes on, and nothing in it is replaced."""
    arrival = _arrival(call, params)
    await call.service.presence.arrive(key, arrival)
    if before is not None:
        process = call.service.operations.store.process

        async def settings(state: State) -> SettingsChanged:
            changed = await _settings(call, key, params, state)
            return msgspec.structs.replace(changed, attached_process=process)

        await call.service.presence.offer(key, arrival, settings)
    await _entrust(call, key, params, before.provider if before else None)


async def _finish_resume(
    call: RpcCall,
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
        for request, tool_call in await service.presence.deliverable(key, arrival.tools):
            if request.kind == "client_tool":
                await service.presence.deliver_again(key, request)
            pending.append((request, tool_call))


def _deliver_pending(attached: Attached, state: State, pending: list[tuple[OpenRequest, ToolCall]]) -> None:
    """Send the events held back during the resume, then the open requests that the client takes over."""
    attached.member.begin()
    for request, tool_call in pending:
        if request.kind == "client_tool":
            data = {
                "requestId": request.request_id,
                "sessionId": attached.key.session,
                "toolCallId": tool_call.tool_call_id,
                "toolName": tool_call.name,
                "arguments": codec.arguments(tool_call.arguments),
                "workingDirectory": state.working_directory,
            }
            attached.hub.publish("external_tool.requested", data, only=attached.member)
        elif attached.member.answers_questions:
            question = _question(request.request_id, tool_call.tool_call_id, tool_call.arguments)
            attached.hub.ask(attached.member, question)


def _question(request_id: Any, tool_call_id: Any, arguments: str) -> UserInputRequested:
    decoded = codec.arguments(arguments)
    fields = decoded if isinstance(decoded, dict) else {}
    return UserInputRequested(
        request_id=request_id,
        tool_call_id=tool_call_id,
        question=str(fields.get("question", "")),
        choices=tuple(str(choice) for choice in fields.get("choices") or ()),
        allow_freeform=bool(fields.get("allow_freeform", True)),
    )


def _arrival(call: RpcCall, params: SessionParams) -> Arrival:
    return Arrival(
        attachment_id=call.connection.peer.id,
        tools=_client_tools(call, params),
        capabilities=(
            *((ANSWERS_PERMISSIONS,) if params.request_permission else ()),
            *((ANSWERS_QUESTIONS,) if params.request_user_input else ()),
        ),
    )


def _client_tools(call: RpcCall, params: SessionParams) -> tuple[ClientTool, ...]:
    return params.client_tools(frozenset(call.service.settings.built_in))


async def _options(call: RpcCall, key: Key, params: SessionParams) -> SessionOptions:
    service = call.service
    directory = _directory(call, params.working_directory)
    provider = params.own_provider()
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
            provider=provider.provider() if provider else None,
            stream=bool(params.streaming),
            compaction_settings=params.infinite_sessions.settings() if params.infinite_sessions else UNSET,
            place_rules=await service.operations.store.granted(key.owner, directory),
        ),
    )


async def _settings(call: RpcCall, key: Key, params: SessionParams, state: State) -> SettingsChanged:
    """The settings that a returning client changes: only those that it names."""
    system = params.system_message
    directory: str | UnsetType = UNSET
    if params.working_directory is not None:
        directory = _directory(call, params.working_directory)
    provider = params.own_provider()
    attachments = await call.service.operations.store.attachments(key)
    others_ask = any(ANSWERS_QUESTIONS in attachment.capabilities for attachment in attachments)
    place = directory if isinstance(directory, str) else state.working_directory or ""
    rules = await call.service.operations.store.granted(key.owner, place)
    return SettingsChanged(
        system_message=system.text() if system else UNSET,
        system_mode=("replace" if system.mode == "replace" else "append") if system else UNSET,
        working_directory=UNSET if _keeps_directory(state, directory) else directory,
        tools=_built_in_tools(call, params, state, others_ask),
        place_rules=rules,
        reasoning_effort=params.reasoning_effort if params.reasoning_effort is not None else UNSET,
        provider=provider.provider() if provider else UNSET,
        stream=UNSET if params.streaming is None else params.streaming,
        compaction_settings=params.infinite_sessions.settings() if params.infinite_sessions else UNSET,
        client_name=params.client_name if params.client_name is not None else UNSET,
    )


def _built_in_tools(call: RpcCall, params: SessionParams, state: State, others_ask: bool) -> tuple[str, ...]:
    """The built-in tools after a resume. The filters of the last client hold; without filters the tools stay."""
    if params.available_tools is not None or params.excluded_tools is not None or state.tools is None:
        return params.built_in_tools(call.service.settings.built_in)
    if params.request_user_input and "ask_user" not in state.tools:
        return (*state.tools, *(name for name in call.service.settings.built_in if name == "ask_user"))
    if others_ask or params.request_user_input:
        return state.tools
    return tuple(name for name in state.tools if name != "ask_user")


def _keeps_directory(state: State, directory: str | UnsetType) -> bool:
    """Whether the session stays in its folder. If another folder took its place, naming the path chooses that one."""
    is_same_path = directory == state.working_directory
    return is_same_path and isinstance(directory, str) and is_still(state.directory_identity, directory)


def _directory(call: RpcCall, name: str | None) -> str:
    if name is None:
        return str(call.service.settings.directory)
    if "\0" in name:
        raise Invalid("directory_invalid", "A working directory can't have a NUL character in its name.")
    path = call.service.settings.directory / name
    try:
        directory = path.resolve() if path.is_dir() else None
    except (OSError, RuntimeError):  # A name that no directory can have, or a loop of links.
        directory = None
    if directory is None:
        raise Invalid("directory_not_found", f"The working directory {name} does not exist. Name one that does.")
    return str(directory)


async def _entrust(call: RpcCall, key: Key, params: SessionParams, before: Provider | None) -> None:
    """Keep the client's secrets for model calls. The log names their provider first, so that no process without them
    runs the session meanwhile. Secrets of another client stay as long as the process that keeps them lives."""
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


def _result(call: RpcCall, row: Row, mode: str) -> dict[str, Any]:
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
async def detach(call: RpcCall) -> Any:
    async with call.connection.attaching:
        if not await call.service.leave(call.connection, call.session_id, on_purpose=True):
            return {"success": False, "error": f"Session not found: {call.session_id}"}
    return {"success": True}


@method("session.shutdown")
async def shutdown(call: RpcCall) -> Any:
    attached = call.attached()
    kind: Literal["routine", "error"] = "error" if call.params.get("type") == "error" else "routine"
    await call.service.operations.stop(attached.key, keep_queued=True, cause="suspended")
    await call.service.shut_down(attached.key, shutdown_type=kind, reason=call.param("reason", str, ""))
    return None


@method("session.delete")
async def delete(call: RpcCall) -> Any:
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


@method("session.setForeground")
async def set_foreground(call: RpcCall) -> Any:
    row = await call.service.operations.store.row(call.key)
    if row is None:
        return {"success": False, "error": f"Session not found: {call.session_id}"}
    before, call.service.foreground = call.service.foreground, call.session_id
    if before is not None and before != call.session_id:
        call.service.announce("background", Key(call.connection.owner, before))
    call.service.announce("foreground", call.key, call.service.lifecycle_metadata(row))
    return {"success": True}


@method("session.getForeground")
async def get_foreground(call: RpcCall) -> Any:
    session_id = call.service.foreground
    return {} if session_id is None else {"sessionId": session_id}


@method("sessions.fork")
async def fork(call: RpcCall) -> Any:
    source = call.key
    row = await call.service.operations.session(source)
    before = call.param("toEventId", str, "") or None
    name = call.param("name", str, "") or f"{row.title or f'Session {source.session[:8]}'} (fork)"
    try:
        forked = await call.service.operations.fork(source, before=before, title=name)
    except NotFound as error:
        raise call.failed(error.message) from error
    key = Key(source.owner, forked)
    row = await call.service.operations.session(key)
    call.service.announce("created", key, call.service.lifecycle_metadata(row))
    return {"sessionId": forked, "name": name}
