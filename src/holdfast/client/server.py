"""A program's connection to a Holdfast server.

async with connect("http://127.0.0.1:8787", key) as server:
    session = await server.session()
    turn = await session.run("Hello")
    print(turn.text)
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from holdfast.client.address import key_source, parse_url
from holdfast.client.session import Session
from holdfast.client.webhooks import ServerWebhooks
from holdfast.client.wire import Wire, WireRequest
from holdfast.config import Secret, load
from holdfast.events.codec import to_bytes
from holdfast.events.ids import random_id
from holdfast.events.session import ClientTool
from holdfast.protocol.file import FileList, FileView
from holdfast.protocol.home import Home, source_pieces
from holdfast.protocol.identity import IdentityView
from holdfast.protocol.model import ModelList, OfferedModel
from holdfast.protocol.permission import Permission, PermissionList
from holdfast.protocol.provider import OwnProvider
from holdfast.protocol.session import SessionList, SessionView
from holdfast.protocol.task import TaskList, TaskView

PATIENCE_SECONDS: Final = 60.0
"""How long a server may be away before that is an error: it may be restarting."""

PAGE: Final = 200

KEY_VARIABLE: Final = "HOLDFAST_KEY"


def connect(
    url: str,
    key: str | Secret | None = None,
    *,
    patience_seconds: float = PATIENCE_SECONDS,
    stream_patience_seconds: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> "Server":
    """A server, to be used with `async with`. Without a key, `HOLDFAST_KEY` is used; without that, for a server that
    this user started on this machine with `--auth none`, the token in its data directory. `patience_seconds`: how long
    the server may be away before a request fails; `stream_patience_seconds`: the same for a stream."""
    environ = os.environ if environ is None else environ
    address, token = parse_url(url)
    shown = key or token or environ.get(KEY_VARIABLE, "").strip() or None
    data_dir: Path | None = None
    if shown is None and address.is_local:
        data_dir = load({}, environ).data_dir
    wire = Wire(address, key_source(address, shown, data_dir), patience_seconds=patience_seconds)
    patience = stream_patience_seconds if stream_patience_seconds is not None else patience_seconds
    return Server(wire, stream_patience_seconds=patience)


class Server(Home):
    """A server. Entering it checks that a Holdfast server answers and accepts the key. Leaving it stops no session."""

    def __init__(self, wire: Wire, *, stream_patience_seconds: float) -> None:
        self._wire = wire
        self._stream_patience_seconds = stream_patience_seconds
        self.models: tuple[OfferedModel, ...] = ()
        """The models that the server lists; a session may choose others too."""

    def __repr__(self) -> str:
        return f"Server({self.url})"

    @property
    def url(self) -> str:
        return self._wire.address.url

    async def __aenter__(self) -> Self:
        try:
            await self._wire.open()
            self.models = (await self._wire.ask(WireRequest(method="GET", path="/v1/models"), ModelList)).models
        except BaseException:
            await self._wire.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._wire.close()

    @property
    def default_model(self) -> str:
        return next((model.name for model in self.models if model.is_default), "")

    async def identity(self) -> IdentityView:
        """The owner and role of the key, with what the owner uses of each quota."""
        return await self._wire.ask(WireRequest(method="GET", path="/v1/identity"), IdentityView)

    async def session(
        self,
        session_id: str | None = None,
        *,
        model: str | None = None,
        title: str | None = None,
        system_message: str | None = None,
        working_directory: str | None = None,
        tools: Sequence[str] | None = None,
        client_tools: Sequence[ClientTool] = (),
        allow: Sequence[str] = (),
        dry_run: bool = False,
        metadata: Mapping[str, str] | None = None,
        provider: OwnProvider | None = None,
    ) -> Session:
        """The session with this id, created if it does not exist. The server chooses every option that is left out."""
        chosen = {
            "model": model,
            "title": title,
            "system_message": system_message,
            "working_directory": working_directory,
            "tools": tools,
        }
        made = session_id if session_id is not None else random_id()
        body = {
            "id": made,
            "allow": allow,
            "dry_run": dry_run,
            "client_tools": [_given_tool(tool) for tool in client_tools],
            "metadata": metadata or {},
            **{name: value for name, value in chosen.items() if value is not None},
            **({"provider": provider} if provider is not None else {}),
        }
        await self._wire.ask(WireRequest(method="POST", path="/v1/sessions", body=to_bytes(body)), SessionView)
        return self.open(made)

    def open(self, session_id: str, *, patience_seconds: float | None = None) -> Session:
        """The session with this id, which must exist: this is not checked."""
        patience = patience_seconds if patience_seconds is not None else self._stream_patience_seconds
        return Session(self._wire, session_id, patience_seconds=patience)

    async def sessions(self, *, text: str = "") -> AsyncIterator[SessionView]:
        """The owner's sessions, newest first; with `text`, those with it in the title or its words in a message."""
        cursor: str | None = None
        while True:
            query = {"limit": str(PAGE), "q": text, **({"cursor": cursor} if cursor is not None else {})}
            page = await self._wire.ask(WireRequest(method="GET", path="/v1/sessions", query=query), SessionList)
            if page.unsearched:
                continue  # Each search indexes a part of what is left.
            for found in page.sessions:
                yield found
            cursor = page.next
            if cursor is None:
                return

    async def tasks(self) -> tuple[TaskView, ...]:
        """The commands of all sessions, in the background and in the foreground, oldest first."""
        return (await self._wire.ask(WireRequest(method="GET", path="/v1/tasks"), TaskList)).tasks

    async def permissions(self) -> tuple[Permission, ...]:
        """Permissions that the owner granted for always, in a directory or everywhere."""
        return (await self._wire.ask(WireRequest(method="GET", path="/v1/permissions"), PermissionList)).permissions

    async def revoke_permission(self, permission_id: str) -> Permission:
        """Revoke a permission in all sessions, from their next call on. Raises `NotFound` if it is not granted."""
        path = f"/v1/permissions/{quote(permission_id, safe='')}"
        return await self._wire.ask(WireRequest(method="DELETE", path=path, is_repeatable=False), Permission)

    @property
    def webhooks(self) -> ServerWebhooks:
        """The owner's webhooks, which get the events of all sessions."""
        return ServerWebhooks(self._wire)

    async def upload(
        self,
        source: Path | bytes,
        *,
        name: str = "",
        media_type: str = "",
        file_id: str | None = None,
        keep: bool = False,
    ) -> FileView:
        query = {
            "name": name or (source.name if isinstance(source, Path) else ""),
            "id": file_id if file_id is not None else random_id(),
            "keep": "true" if keep else "false",
        }
        asked = WireRequest(
            method="POST",
            path="/v1/files",
            query=query,
            body=partial(source_pieces, source),
            headers={"content-type": media_type or "application/octet-stream"},
        )
        return await self._wire.ask(asked, FileView)

    async def files(self, *, session_id: str | None = None) -> AsyncIterator[FileView]:
        path = "/v1/files" if session_id is None else f"/v1/sessions/{quote(session_id, safe='')}/files"
        cursor: str | None = None
        while True:
            query = {"limit": str(PAGE), **({"cursor": cursor} if cursor is not None else {})}
            page = await self._wire.ask(WireRequest(method="GET", path=path, query=query), FileList)
            for found in page.files:
                yield found
            cursor = page.next
            if cursor is None:
                return

    async def file(self, file_id: str) -> FileView:
        return await self._wire.ask(WireRequest(method="GET", path=_file_path(file_id)), FileView)

    def read_file(self, file_id: str) -> AsyncGenerator[bytes, None]:
        return self._wire.pieces(WireRequest(method="GET", path=f"{_file_path(file_id)}/content"))

    async def keep_file(self, file_id: str, *, kept: bool = True) -> FileView:
        asked = WireRequest(method="PATCH", path=_file_path(file_id), body=to_bytes({"kept": kept}))
        return await self._wire.ask(asked, FileView)

    async def delete_file(self, file_id: str) -> None:
        await self._wire.ask_bytes(WireRequest(method="DELETE", path=_file_path(file_id)))

    async def import_session(self, document: bytes) -> Session:
        """A new, idle session from a document of `Session.export`. This is never retried, because it carries no id."""
        asked = WireRequest(method="POST", path="/v1/sessions/import", body=document, is_repeatable=False)
        return self.open((await self._wire.ask(asked, SessionView)).id)


def _file_path(file_id: str) -> str:
    return f"/v1/files/{quote(file_id, safe='')}"


def _given_tool(tool: ClientTool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "asks_permission": tool.asks_permission,
        "ends_turn": tool.ends_turn,
    }
