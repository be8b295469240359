"""The `sessions.*` methods, which find, list and delete sessions without attaching to them."""

from typing import Any

import holdfast.server.copilot.methods.sessions as sessions
from holdfast.events.ids import Key, SessionId
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.errors import Invalid

MAX_AT_ONCE = 1_000


@method("sessions.list")
async def list_sessions(call: RpcCall) -> Any:
    if call.params.get("source") == "remote":
        return {"sessions": []}
    return await sessions.list_sessions(call)


@method("sessions.getMetadata")
async def get_metadata(call: RpcCall) -> Any:
    return await sessions.get_metadata(call)


@method("sessions.delete")
async def delete(call: RpcCall) -> Any:
    deleted = await sessions.delete(call)
    if not deleted["success"]:
        raise call.failed(deleted["error"])


@method("sessions.bulkDelete")
async def bulk_delete(call: RpcCall) -> Any:
    """Delete several sessions. Missing ones are left out of the answer; freed bytes are not counted and always 0."""
    freed = {}
    for session_id in _ids(call):
        one = RpcCall(call.service, call.connection, call.method, {"sessionId": session_id})
        if (await sessions.delete(one))["success"]:
            freed[session_id] = 0
    return {"freedBytes": freed}


@method("sessions.close")
async def close(call: RpcCall) -> Any:
    await sessions.detach(call)
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
    listed: list[dict[str, Any]] = (await sessions.list_sessions(unfiltered))["sessions"]
    return listed


async def _listed_ids(call: RpcCall) -> list[str]:
    return [session["sessionId"] for session in await _listed(call)]


def _ids(call: RpcCall) -> list[str]:
    session_ids = call.param("sessionIds", list[str], [])
    if len(session_ids) > MAX_AT_ONCE:
        raise Invalid("too_many", f"At most {MAX_AT_ONCE:,} sessions at once. Split the list.")
    return session_ids
