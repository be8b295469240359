"""A session's workspace: files that clients keep with the session, outside its working directory."""

import asyncio
from typing import Any

from holdfast.events.ids import random_id
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.projection import iso
from holdfast.server.copilot.session_files import FILES, SessionFiles
from holdfast.session.state import State
from holdfast.store.store import Row


def workspace(row: Row, state: State) -> dict[str, Any]:
    """The metadata of a workspace, with the field names of the file that GitHub's runtime keeps for it."""
    metadata: dict[str, Any] = {
        "id": row.key.session,
        "cwd": state.working_directory,
        "client_name": state.client_name or "sdk",
        "user_named": state.title_chosen,
        "summary_count": 0,
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
    }
    return {**metadata, "name": row.title} if row.title else metadata


def _files(call: RpcCall) -> SessionFiles:
    return SessionFiles(call.service.folder(call.attached().key))


@method("session.workspaces.getWorkspace", "session.workspaces.ensure")
async def get_workspace(call: RpcCall) -> Any:
    key = call.attached().key
    row, state = await call.service.operations.session(key), await call.service.operations.state(key)
    return {"workspace": workspace(row, state), "path": str(call.service.folder(key))}


@method("session.workspaces.listFiles")
async def list_files(call: RpcCall) -> Any:
    return {"files": await asyncio.to_thread(_files(call).listed)}


@method("session.workspaces.readFile")
async def read_file(call: RpcCall) -> Any:
    return {"content": await asyncio.to_thread(_files(call).read, call.text("path"))}


@method("session.workspaces.createFile")
async def create_file(call: RpcCall) -> Any:
    await asyncio.to_thread(_files(call).write, call.text("path"), call.text("content"))


@method("session.workspaces.saveLargePaste")
async def save_large_paste(call: RpcCall) -> Any:
    text, name = call.text("content"), f"paste-{random_id()}.txt"
    await asyncio.to_thread(_files(call).write, name, text)
    path = call.service.folder(call.key) / FILES / name
    return {"saved": {"filename": name, "filePath": str(path), "sizeBytes": len(text.encode("utf-8", "replace"))}}


@method("session.workspaces.createDirectory")
async def create_directory(call: RpcCall) -> Any:
    parents = call.param("recursive", bool, False)
    await asyncio.to_thread(_files(call).make_directory, call.text("path"), parents=parents)


@method("session.workspaces.removePath")
async def remove_path(call: RpcCall) -> Any:
    folders, missing_too = call.param("recursive", bool, False), call.param("force", bool, False)
    await asyncio.to_thread(_files(call).remove, call.text("path"), folders=folders, missing_too=missing_too)


@method("session.workspaces.renamePath")
async def rename_path(call: RpcCall) -> Any:
    await asyncio.to_thread(_files(call).rename, call.text("source"), call.text("destination"))


@method("session.workspaces.statFile")
async def stat_file(call: RpcCall) -> Any:
    info = await asyncio.to_thread(_files(call).info, call.text("path"))
    return {
        "size": info.size,
        "mtimeMs": info.changed_ms,
        "birthtimeMs": info.made_ms,
        "isFile": info.is_file,
        "isDirectory": info.is_directory,
    }
