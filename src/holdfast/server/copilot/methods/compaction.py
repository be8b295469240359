"""Compacts a conversation on request, and gives compactions up."""

from typing import Any, Final

from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.errors import Conflict

COMPACT_SECONDS: Final = 900.0
"""How long a request waits for a summary: a try at one takes ten minutes at most."""

CANCEL_SECONDS: Final = 5.0


@method("session.history.compact")
async def compact(call: RpcCall) -> Any:
    """The answer comes with the end of the compaction. `trigger` and `tokenLimit` have no effect."""
    key, operations = call.attached().key, call.service.operations
    instructions = call.param("customInstructions", str, "")
    with call.connection.peer.waiting():
        try:
            compacted = await operations.compact(key, instructions=instructions, wait_seconds=COMPACT_SECONDS)
        except Conflict as error:
            if error.code != "nothing_to_compact":
                raise
            return {"success": False, "tokensRemoved": 0, "messagesRemoved": 0}
    done: dict[str, Any] = {
        "success": compacted.outcome == "compacted",
        "tokensRemoved": max(0, compacted.tokens_before - compacted.tokens_after) if compacted.tokens_after else 0,
        "messagesRemoved": compacted.removed,
    }
    return {**done, "summaryContent": compacted.summary} if compacted.summary else done


@method("session.history.cancelBackgroundCompaction")
async def cancel_background(call: RpcCall) -> Any:
    return {"cancelled": await _cancelled(call, only_manual=False)}


@method("session.history.abortManualCompaction")
async def abort_manual(call: RpcCall) -> Any:
    return {"aborted": await _cancelled(call, only_manual=True)}


async def _cancelled(call: RpcCall, *, only_manual: bool) -> bool:
    key, operations = call.attached().key, call.service.operations
    under_way = (await operations.state(key)).compaction
    if under_way is None or (only_manual and under_way.trigger != "manual"):
        return False
    done = await operations.cancel_compaction(key, only_manual=only_manual, wait_seconds=CANCEL_SECONDS)
    return done.outcome != "nothing_to_cancel"
