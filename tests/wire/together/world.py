"""One database, and whatever serves it: `holdfast serve`, `holdfast-copilot` and `holdfast chat`, each in a process of
its own, with one scripted model behind all of them. Any of them may be the one that runs a session; no test depends on
which it is, unless only one is there."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tests.cli.processes import Place as CliPlace
from tests.cli.processes import Terminal
from tests.http.world import PATIENCE_SECONDS
from tests.http.world import Client as HttpClient
from tests.wire.ai_sdk.harness import QUICK, Home, Model, Server, Talk
from tests.wire.ai_sdk.node_clients import Node
from tests.wire.copilot.harness import Heard, connected
from tests.wire.copilot.harness import Home as CopilotHome
from tests.wire.copilot.harness import Server as CopilotServer
from tests.wire.together.surfaces import (
    ChatSurface,
    CopilotSurface,
    EventsSurface,
    NpmChat,
    PlainChat,
    Surface,
    TerminalSurface,
    leaves_it,
)

NAMES = ("copilot", "ai-sdk", "terminal", "events")
"""The surfaces by which one session is had."""


class Place:
    """A database of a test's own, and what can be started on it."""

    def __init__(self, folder: Path, model: Model, node: Node | None) -> None:
        self.model = model
        self._node = node
        self._http = Home(folder, model)
        (folder / "copilot").mkdir()
        self._copilot = CopilotHome(folder / "copilot", model)
        self._cli = CliPlace(folder)
        self._cli.options = ("--model", "openai/scripted", "--model-base-url", model.url)
        self._cli.environ |= QUICK
        self.work = self._http.work

    def serve(self) -> AbstractAsyncContextManager[Server]:
        return self._http.serve()

    def serve_copilot(self) -> AbstractAsyncContextManager[CopilotServer]:
        return self._copilot.serve(
            HOLDFAST_DATABASE=f"sqlite:///{self._http.data / 'holdfast.db'}",
            HOLDFAST_MODEL="openai/scripted",
            HOLDFAST_MODEL_BASE_URL=self.model.url,
            COPILOT_API_URL="",  # Its models would be for this server only.
        )

    def terminal(self, session: str) -> Terminal:
        return self._cli.terminal("chat", "--session", session, term="dumb")

    def chat(self, talk: Talk) -> ChatSurface:
        return ChatSurface(NpmChat(self._node, talk) if self._node is not None else PlainChat(talk))


def http_client(server: Server) -> HttpClient:
    headers = {"authorization": f"Bearer {server.token}"}
    return HttpClient(base_url=server.url, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False)


@contextlib.asynccontextmanager
async def copilot_surface(server: CopilotServer, session: str) -> AsyncIterator[CopilotSurface]:
    heard = Heard()
    async with connected(server.client()) as client:
        resumed = await client.resume_session(session, on_permission_request=leaves_it, on_event=heard, streaming=True)
        yield CopilotSurface(resumed, heard)


class World:
    """A database that both servers serve."""

    def __init__(self, place: Place, http: Server, copilot: CopilotServer) -> None:
        self.place = place
        self.model = place.model
        self.http = http
        self.copilot = copilot

    @contextlib.asynccontextmanager
    async def gathered(self, session: str, **options: Any) -> AsyncIterator["Gathered"]:
        """A new session, and everybody attached to it."""
        async with contextlib.AsyncExitStack() as stack:
            http = await stack.enter_async_context(http_client(self.http))
            await http.make(id=session, **options)
            talk = await stack.enter_async_context(Talk(self.http, session))
            events = await stack.enter_async_context(EventsSurface(http, session).reading())
            copilot = await stack.enter_async_context(copilot_surface(self.copilot, session))
            terminal = TerminalSurface(await stack.enter_async_context(self.place.terminal(session)))
            await terminal.terminal.until("Continuing session")
            yield Gathered(copilot=copilot, chat=self.place.chat(talk), terminal=terminal, events=events)


class Gathered:
    """All surfaces of one session."""

    def __init__(
        self, *, copilot: CopilotSurface, chat: ChatSurface, terminal: TerminalSurface, events: EventsSurface
    ) -> None:
        self.copilot = copilot
        self.chat = chat
        self.terminal = terminal
        self.events = events

        self.all: dict[str, Surface] = dict(zip(NAMES, (copilot, chat, terminal, events), strict=True))

    async def until_said(self, text: str) -> None:
        for surface in self.all.values():
            await surface.until_said(text)

    async def check_unbroken(self) -> None:
        for surface in self.all.values():
            await surface.check_unbroken()
