"""A whole runtime with the Copilot surface on it, and clients that talk to it in memory: real frames, no sockets."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from holdfast import Runtime
from holdfast.config import load
from holdfast.events.ids import Key, SessionId
from holdfast.models.scripted import Gate as ModelGate
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.server.copilot.frames import FrameReader, decoded, frame
from holdfast.server.copilot.gate import ConnectionGate, Terms
from holdfast.server.copilot.model_names import ModelNames
from holdfast.server.copilot.peer import Peer
from holdfast.server.copilot.service import CopilotService, CopilotSettings
from holdfast.server.copilot.surface import Surface

SECONDS = 20.0
"""Timeout for everything that a test waits for."""

MODELS = ("first", "second")


class Refused(Exception):
    """The runtime answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.message: str = error["message"]


class Hold:
    """Holds a model in the middle of a streamed answer."""

    def __init__(self, *, held: bool = True) -> None:
        self._reached = asyncio.Event()
        self._free = asyncio.Event()
        if not held:
            self._free.set()

    async def __call__(self, piece: int) -> None:
        if not self._free.is_set():
            self._reached.set()
        await self._free.wait()

    def hold(self) -> None:
        self._reached.clear()
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    async def until_reached(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self._reached.wait()


class Client:
    """One connection, seen from the client."""

    def __init__(self, terms: Terms) -> None:
        self.told: list[dict[str, Any]] = []
        """All received session events, in order of arrival."""
        self.lifecycle: list[dict[str, Any]] = []
        self._frames = FrameReader()
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._news = asyncio.Event()
        self.peer = Peer(self, lambda peer: ConnectionGate(peer, terms, None))

    def begin(self, method: str, **params: Any) -> "asyncio.Future[dict[str, Any]]":
        number = next(self._ids)
        self._asked[number] = asyncio.get_running_loop().create_future()
        self.peer.received(frame({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        return self._asked[number]

    async def answer(self, method: str, **params: Any) -> dict[str, Any]:
        """The whole response: a result or an error."""
        async with asyncio.timeout(SECONDS):
            return await self.begin(method, **params)

    async def ask(self, method: str, **params: Any) -> Any:
        """The result; raises `Refused`."""
        answer = await self.answer(method, **params)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]

    async def until(self, event_type: str, fits: Callable[[dict[str, Any]], bool] = lambda data: True) -> Any:
        """The data of the first matching event of a type."""
        async with asyncio.timeout(SECONDS):
            while True:
                for event in self.told:
                    if event["type"] == event_type and fits(event["data"]):
                        return event["data"]
                self._news.clear()
                await self._news.wait()

    async def until_session(self, what: str) -> dict[str, Any]:
        """The first notification that a session was created, updated or deleted."""
        async with asyncio.timeout(SECONDS):
            while True:
                for told in self.lifecycle:
                    if told["type"] == f"session.{what}":
                        return told
                self._news.clear()
                await self._news.wait()

    def data(self, event_type: str) -> list[Any]:
        return [event["data"] for event in self.told if event["type"] == event_type]

    async def session(self, **params: Any) -> "Session":
        """A new session whose permission requests this client answers."""
        made = await self.ask("session.create", **{"requestPermission": True, **params})
        return Session(self, made["sessionId"], Path(made["workspacePath"]))

    async def hang_up(self) -> None:
        self.peer.lost()
        await self.peer.finished()

    # The wire, as the peer sees it

    def write(self, data: bytes) -> None:
        self._frames.feed(data)
        while (body := self._frames.next()) is not None:
            self._take(decoded(body))

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("method") == "session.event":
            self.told.append(message["params"]["event"])
            self._news.set()
        elif message.get("method") == "session.lifecycle":
            self.lifecycle.append(message["params"])
            self._news.set()
        elif "method" not in message:
            self._asked.pop(message["id"]).set_result(message)

    def unsent_bytes(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        asyncio.get_running_loop().call_soon(self.peer.lost)

    abort = close


class Session:
    """A session, seen from one of its clients."""

    def __init__(self, client: Client, session_id: str, folder: Path) -> None:
        self.client = client
        self.id = session_id
        self.folder = folder

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.client.ask(f"session.{method}", sessionId=self.id, **params)

    async def say(self, prompt: str) -> str:
        """Send a message, wait for the end of its turn, and return the answer."""
        done = await self.ask("sendAndWait", prompt=prompt)
        return str(done["response"]["data"]["content"])

    async def events(self) -> list[dict[str, Any]]:
        """All persisted events."""
        found: list[dict[str, Any]] = (await self.ask("getMessages"))["events"]
        return found


class Desk:
    """The runtime that clients connect to."""

    def __init__(self, runtime: Runtime, service: CopilotService) -> None:
        self.runtime = runtime
        self.service = service
        self.clients: list[Client] = []
        self._terms = Terms(connected=Surface(service).connected, version="0", shut_down=_nothing)

    def client(self) -> Client:
        self.clients.append(Client(self._terms))
        return self.clients[-1]

    def key(self, session: Session) -> Key:
        return Key(self.runtime.owner, SessionId(session.id))


async def _nothing() -> None:
    pass


async def _listed() -> list[dict[str, Any]]:
    return [{"id": name, "name": name, "capabilities": {"supports": {}, "limits": {}}} for name in MODELS]


@contextlib.asynccontextmanager
async def desk_at(
    folder: Path, *replies: str | ScriptedCall, gate: ModelGate | None = None, **config: Any
) -> AsyncIterator[Desk]:
    """A runtime whose model gives these replies, one after each round of tools."""
    said = tuple(Reply(text=reply) if isinstance(reply, str) else Reply(tool_calls=(reply,)) for reply in replies)
    model = ScriptedModel(Script((Rule(said or (Reply(text="Yes."),)),)), f"copilot/{MODELS[0]}", gate=gate)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    database = f"sqlite:///{folder / 'holdfast.db'}"
    async with Runtime(config=load({"database": database, **config}, {}), model=model) as runtime:
        service = CopilotService(
            operations=runtime.operations,
            tasks=runtime.task_operations,
            shell=runtime.shell,
            clock=runtime.clock,
            settings=CopilotSettings(
                home=folder / "home", directory=work, owner=runtime.owner, built_in=runtime.tool_names
            ),
            models=ModelNames(MODELS[0], _listed),
            credentials=runtime.credentials,
            observer=runtime.observer,
        )
        desk = Desk(runtime, service)
        try:
            yield desk
        finally:
            for client in desk.clients:
                await client.hang_up()
            await service.close()
