"""The list of an owner's sessions, and the methods that find, delete and close sessions of the list."""

from typing import Any

from holdfast.events.ids import Key, SessionId
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.methods.sessions import delete, detach
from holdfast.server.copilot.projection import iso
from holdfast.server.errors import Invalid, NotFound
from holdfast.store.store import Row

PAGE = 200
MAX_AT_ONCE = 1_000


@method("session.list")
async def list_sessions(call: RpcCall) -> Any:
    filters = call.param("filter", dict[str, Any], {})
    if any(filters.get(name) is not None for name in ("gitRoot", "repository", "branch")):
        return {"sessions": []}
    listed = []
    after = None
    while True:
        page = await call.service.operations.sessions(call.connection.owner, limit=PAGE, after=after)
        for row in page.rows:
            described = await _described(call, row)
            if described is not None and filters.get("cwd") in (None, described["context"]["cwd"]):
                listed.append(described)
        after = page.next
        if after is None:
            return {"sessions": listed}


@method("sessions.list")
async def list_by_source(call: RpcCall) -> Any:
    return {"sessions": []} if call.params.get("source") == "remote" else await list_sessions(call)


@method("session.getMetadata", "sessions.getMetadata")
async def get_metadata(call: RpcCall) -> Any:
    row = await call.service.operations.store.row(call.key)
    described = await _described(call, row) if row is not None else None
    return {} if described is None else {"session": described}


@method("session.getLastId")
async def get_last_id(call: RpcCall) -> Any:
    after = None
    while True:
        page = await call.service.operations.sessions(call.connection.owner, limit=20, after=after)
        for row in page.rows:
            if await _described(call, row) is not None:
                return {"sessionId": row.key.session}
        after = page.next
        if after is None:
            return {}


async def _described(call: RpcCall, row: Row) -> dict[str, Any] | None:
    """A session's entry in lists; None for a session without any message."""
    try:
        state = await call.service.operations.whole_state(row.key)
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


@method("sessions.delete")
async def delete_or_fail(call: RpcCall) -> Any:
    deleted = await delete(call)
    if not deleted["success"]:
        raise call.failed(deleted["error"])


@method("sessions.bulkDelete")
async def bulk_delete(call: RpcCall) -> Any:
    """Delete several sessions. Missing ones are left out of the answer; freed bytes are not counted and always 0."""
    freed = {}
    for session_id in _ids(call):
        one = RpcCall(call.service, call.connection, call.method, {"sessionId": session_id})
        if (await delete(one))["success"]:
            freed[session_id] = 0
    return {"freedBytes": freed}


@method("sessions.close")
async def close(call: RpcCall) -> Any:
    await detach(call)
    return {}


@method("sessions.checkInUse")
async def check_in_use(call: RpcCall) -> Any:
    store = call.service.operations.store
    keys = [Key(call.connection.owner, SessionId(session_id)) for session_id in _ids(call)]
    return {"inUse": [key.session for key in keys if await store.attachments(key)]}


@method("sessions.findByPrefix")
async def find_by_prefix(call: RpcCall) -> Any:
    prefix = call.text("prefix")
    matching = [session_id for session_id in await _listed_ids(call) if session_id.startswith(prefix)]
    return {"sessionId": matching[0]} if prefix and len(matching) == 1 else {}


@method("sessions.listNonEmptySessionIds")
async def list_non_empty(call: RpcCall) -> Any:
    limit = call.param("limit", int, MAX_AT_ONCE)
    return {"sessionIds": (await _listed_ids(call))[: max(0, limit)]}


@method("sessions.getLastForContext")
async def get_last_for_context(call: RpcCall) -> Any:
    """The session that last worked in the same directory, or else the last of all."""
    directory = call.param("context", dict[str, Any], {}).get("cwd")
    listed = await _listed(call)
    same = [session for session in listed if session["context"]["cwd"] == directory]
    return {"sessionId": (same or listed)[0]["sessionId"]} if listed else {}


async def _listed(call: RpcCall) -> list[dict[str, Any]]:
    unfiltered = RpcCall(call.service, call.connection, call.method, {})
    listed: list[dict[str, Any]] = (await list_sessions(unfiltered))["sessions"]
    return listed


async def _listed_ids(call: RpcCall) -> list[str]:
    return [session["sessionId"] for session in await _listed(call)]


def _ids(call: RpcCall) -> list[str]:
    session_ids = call.param("sessionIds", list[str], [])
    if len(session_ids) > MAX_AT_ONCE:
        raise Invalid("too_many", f"At most {MAX_AT_ONCE:,} sessions at once. Split the list.")
    return session_ids
