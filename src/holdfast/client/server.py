"""A Holdfast server, as a program uses it.

async with connect("http://127.0.0.1:8787", key) as server:
    session = await server.session()
    turn = await session.run("Hello")
    print(turn.text)
"""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec

from holdfast.client.address import key_source, parse_url
from holdfast.client.session import Session
from holdfast.client.views import Permission, SessionView, Task
from holdfast.client.wire import Asked, Wire
from holdfast.config import Secret, load
from holdfast.events.codec import to_bytes
from holdfast.events.ids import random_id

PATIENCE_SECONDS: Final = 60.0
"""For how long a server that was there may be away before that is an error: it may be starting again."""

PAGE: Final = 200

KEY_VARIABLE: Final = "HOLDFAST_KEY"


class _Page(msgspec.Struct):
    sessions: tuple[SessionView, ...]
    next: str | None


class _Tasks(msgspec.Struct):
    tasks: tuple[Task, ...]


class _Permissions(msgspec.Struct):
    permissions: tuple[Permission, ...]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a session may name."""

    name: str
    is_default: bool = False


class _Models(msgspec.Struct):
    models: tuple[Model, ...]


def connect(
    url: str,
    key: str | Secret | None = None,
    *,
    patience_seconds: float = PATIENCE_SECONDS,
    environ: Mapping[str, str] | None = None,
) -> "Server":
    """A server at that URL, to be entered. Without a key, `HOLDFAST_KEY` is used; and for a server that was started by
    this user on this machine with `--auth none`, the token that it left in the data directory."""
    environ = os.environ if environ is None else environ
    address, token = parse_url(url)
    shown = key or token or environ.get(KEY_VARIABLE, "").strip() or None
    data_dir: Path | None = None
    if shown is None and address.is_local:
        data_dir = load({}, environ).data_dir
    return Server(Wire(address, key_source(address, shown, data_dir), patience_seconds=patience_seconds))


class Server:
    """Entering it looks whether a Holdfast server is there and knows the key. Leaving it stops nothing there."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.models: tuple[Model, ...] = ()
        """Those that a session may name, as far as they are known by name."""

    def __repr__(self) -> str:
        return f"Server({self.url})"

    @property
    def url(self) -> str:
        return self._wire.address.url

    async def __aenter__(self) -> Self:
        try:
            await self._wire.open()
            self.models = (await self._wire.ask(Asked(method="GET", path="/v1/models"), _Models)).models
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

    async def session(
        self,
        session_id: str | None = None,
        *,
        model: str | None = None,
        title: str | None = None,
        system_message: str | None = None,
        working_directory: str | None = None,
        tools: Sequence[str] | None = None,
        client_tools: Sequence[Mapping[str, Any]] = (),
        allow: Sequence[str] = (),
        dry_run: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> Session:
        """The session of that id, made now if there is none. What is left out is the server's choice."""
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
            "client_tools": client_tools,
            "metadata": metadata or {},
            **{name: value for name, value in chosen.items() if value is not None},
        }
        await self._wire.ask(Asked(method="POST", path="/v1/sessions", body=to_bytes(body)), SessionView)
        return self.open(made)

    def open(self, session_id: str, *, patience_seconds: float | None = None) -> Session:
        """A session that exists, without looking."""
        patience = patience_seconds if patience_seconds is not None else self._wire.patience_seconds
        return Session(self._wire, session_id, patience_seconds=patience)

    async def sessions(self, *, text: str = "") -> AsyncIterator[SessionView]:
        """One's sessions, the newest first; with a `text`, those that have it in the title or in a message."""
        cursor: str | None = None
        while True:
            query = {"limit": str(PAGE), "q": text, **({"cursor": cursor} if cursor is not None else {})}
            page = await self._wire.ask(Asked(method="GET", path="/v1/sessions", query=query), _Page)
            for found in page.sessions:
                yield found
            cursor = page.next
            if cursor is None:
                return

    async def tasks(self) -> tuple[Task, ...]:
        """The commands of all sessions in the background, and those that turns wait for; the oldest first."""
        return (await self._wire.ask(Asked(method="GET", path="/v1/tasks"), _Tasks)).tasks

    async def permissions(self) -> tuple[Permission, ...]:
        """What was allowed for always, in directories and everywhere."""
        return (await self._wire.ask(Asked(method="GET", path="/v1/permissions"), _Permissions)).permissions

    async def revoke_permission(self, permission_id: str) -> Permission:
        """Take it back in all sessions, from their next call on. Raises `NotFound` if it is not granted (any more)."""
        path = f"/v1/permissions/{quote(permission_id, safe='')}"
        return await self._wire.ask(Asked(method="DELETE", path=path, is_repeatable=False), Permission)

    async def import_session(self, document: bytes) -> Session:
        """A new, idle session from what `Session.export` gave. Not repeated by itself: it has no id to be known by."""
        asked = Asked(method="POST", path="/v1/sessions/import", body=document, is_repeatable=False)
        return self.open((await self._wire.ask(asked, SessionView)).id)
