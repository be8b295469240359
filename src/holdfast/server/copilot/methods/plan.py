"""A session's plan: one text file that clients read and write. A change is recorded in the log."""

import asyncio
from typing import Any

from holdfast.events.session import PlanChanged
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.session_files import SessionFiles


def _files(call: RpcCall) -> SessionFiles:
    return SessionFiles(call.service.folder(call.attached().key))


@method("session.plan.read")
async def read(call: RpcCall) -> Any:
    files = _files(call)
    content = await asyncio.to_thread(files.read_plan)
    return {"exists": content is not None, "content": content, "path": str(files.plan_path)}


@method("session.plan.update")
async def update(call: RpcCall) -> Any:
    """Write the file before the record: a crash in between leaves the new plan, and the client asks again."""
    existed = await asyncio.to_thread(_files(call).write_plan, call.text("content"))
    await call.service.operations.record(call.key, PlanChanged(operation="update" if existed else "create"))


@method("session.plan.delete")
async def delete(call: RpcCall) -> Any:
    if await asyncio.to_thread(_files(call).delete_plan):
        await call.service.operations.record(call.key, PlanChanged(operation="delete"))
