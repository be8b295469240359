"""One session as different people have it before them: in a Copilot client, in a client of the AI SDK, in a terminal,
and as our own stream. Each can be asked what it shows, and used to send or to answer."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import httpx
from copilot import CopilotSession
from copilot.rpc import PermissionDecisionApproveOnce, PermissionDecisionRequest
from copilot.session import PermissionNoResult, PermissionRequestResult
from copilot.session_events import (
    AssistantMessageData,
    PermissionCompletedData,
    PermissionRequest,
    PermissionRequestedData,
    SessionErrorData,
    SystemNotificationData,
    ToolExecutionCompleteData,
    UserMessageData,
)

from tests.cli.processes import Terminal
from tests.http.world import Client as HttpClient
from tests.http.world import Frame
from tests.wire.ai_sdk.harness import Talk
from tests.wire.ai_sdk.node_clients import Client as NodeClient
from tests.wire.ai_sdk.node_clients import Node
from tests.wire.copilot.harness import Heard, patience

_numbers = itertools.count(1)

Said = list[tuple[str, str]]
"""The messages, oldest first: `user` or `assistant`, and the text."""


class Surface(Protocol):
    """The operations that every surface has."""

    async def send(self, text: str) -> None:
        """It is accepted on return."""

    async def until_asked(self, request_id: str) -> None:
        """Until it shows that somebody is to approve this."""

    async def approve(self, request_id: str) -> None: ...

    async def until_said(self, text: str) -> None:
        """Until it shows this answer, whole."""

    async def said(self) -> Said:
        """All that it shows of what was said."""

    async def approvals(self) -> int:
        """How many tools it shows to have been approved, and run once."""

    async def until_told_of_task(self, task_id: str) -> None:
        """Until it shows that the task has completed."""

    async def check_unbroken(self) -> None:
        """It shows no error, and is there."""


def leaves_it(request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
    """For a client that shows requests and answers them later, or never."""
    return PermissionNoResult()


class CopilotSurface:
    def __init__(self, session: CopilotSession, heard: Heard) -> None:
        self.session = session
        self.heard = heard

    async def send(self, text: str) -> None:
        async with patience():
            await self.session.send(text)

    async def until_asked(self, request_id: str) -> None:
        await self.heard.until(PermissionRequestedData, lambda data: data.request_id == request_id)

    async def approve(self, request_id: str) -> None:
        assert await self.tries_to_approve(request_id)

    async def tries_to_approve(self, request_id: str) -> bool:
        given = PermissionDecisionRequest(request_id=request_id, result=PermissionDecisionApproveOnce())
        async with patience():
            return bool((await self.session.rpc.permissions.handle_pending_permission_request(given)).success)

    async def until_said(self, text: str) -> None:
        await self.heard.until(AssistantMessageData, lambda data: data.content == text)

    async def said(self) -> Said:
        found: Said = []
        for data in (event.data for event in self.heard.events):
            if isinstance(data, UserMessageData):
                found.append(("user", data.content))
            elif isinstance(data, AssistantMessageData) and data.content:
                found.append(("assistant", data.content))
        return found

    async def approvals(self) -> int:
        approved = [data for data in self.heard.all(PermissionCompletedData) if data.result.kind == "approved"]
        run = self.heard.all(ToolExecutionCompleteData)
        assert len(approved) == len(run)
        return len(run)

    async def until_told_of_task(self, task_id: str) -> None:
        def is_of_task(data: SystemNotificationData) -> bool:
            return getattr(data.kind, "shell_id", None) == task_id and getattr(data.kind, "exit_code", None) == 0

        await self.heard.until(SystemNotificationData, is_of_task)
        assert len([data for data in self.heard.all(SystemNotificationData) if is_of_task(data)]) == 1

    async def check_unbroken(self) -> None:
        assert self.heard.all(SessionErrorData) == []
        ids = [event.id for event in self.heard.events if not event.ephemeral]
        assert len(ids) == len(set(ids)), "no event is told twice"
        async with patience():
            await self.session.get_events()


class EventsSurface:
    """A plain reader of our own stream, that sends and answers with requests of its own."""

    def __init__(self, http: HttpClient, session: str) -> None:
        self.http = http
        self.session = session
        self.frames: list[Frame] = []
        self.is_broken = False
        self._news = asyncio.Event()

    @contextlib.asynccontextmanager
    async def reading(self, *, after: str = "") -> "AsyncIterator[EventsSurface]":
        task = asyncio.create_task(self._read(after))
        try:
            await self.until(lambda frame: frame.kind == "queue")  # It has caught up, and follows from here on.
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _read(self, after: str) -> None:
        try:
            async with self.http.follow(self.session, after=after) as frames:
                async for frame in frames:
                    self.frames.append(frame)
                    self._news.set()
        except httpx.HTTPError:
            self.is_broken = True
            self._news.set()

    async def until(self, fits: Callable[[Frame], bool]) -> Frame:
        async with patience():
            while True:
                self._news.clear()
                for frame in self.frames:
                    if fits(frame):
                        return frame
                await self._news.wait()

    async def until_broken(self) -> None:
        async with patience():
            while not self.is_broken:
                self._news.clear()
                await self._news.wait()

    async def until_event(self, kind: str, **data: Any) -> dict[str, Any]:
        """An event of the log with these among its data."""

        def fits(frame: Frame) -> bool:
            return frame.kind == "event" and frame.data["type"] == kind and data.items() <= frame.data["data"].items()

        found: dict[str, Any] = (await self.until(fits)).data["data"]
        return found

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [frame.data["data"] for frame in self.frames if frame.kind == "event" and frame.data["type"] == kind]

    @property
    def last_id(self) -> str:
        return [frame.id for frame in self.frames if frame.id][-1]

    async def send(self, text: str) -> None:
        response = await self.http.add(self.session, text, message_id=f"plain-{next(_numbers)}")
        assert response.status_code in (200, 202), response.text

    async def until_asked(self, request_id: str) -> None:
        await self.until_event("permission.requested", requestId=request_id)

    async def approve(self, request_id: str) -> None:
        response = await self.tries_to_approve(request_id)
        assert response.status_code == 200, response.text

    async def tries_to_approve(self, request_id: str) -> httpx.Response:
        return await self.http.post(f"/v1/sessions/{self.session}/requests/{request_id}", json={"decision": "approve"})

    async def until_said(self, text: str) -> None:
        async with patience():
            while ("assistant", text) not in await self.said():
                self._news.clear()
                await self._news.wait()

    async def said(self) -> Said:
        """Answers are put together from what was told of them piece by piece, as a page would."""
        found: Said = []
        for frame in self.frames:
            if frame.kind == "event" and frame.data["type"] == "user.message":
                found.append(("user", frame.data["data"]["content"]))
            elif frame.kind == "event" and frame.data["type"] == "assistant.message":
                found += [("assistant", text) for text in self._pieces(frame.data["data"]["messageId"])]
        return found

    def _pieces(self, message_id: str) -> list[str]:
        blocks: dict[int, bytes] = {}
        for frame in self.frames:
            if frame.kind == "delta" and frame.data["message_id"] == message_id and frame.data["kind"] == "text":
                so_far = blocks.get(frame.data["block"], b"")
                assert frame.data["offset"] == len(so_far), "no piece is missing, and none comes twice"
                blocks[frame.data["block"]] = so_far + frame.data["text"].encode()
        return [text.decode() for text in blocks.values() if text]

    async def approvals(self) -> int:
        approved = [data for data in self.of("permission.completed") if data["decision"] == "approved"]
        run = self.of("tool.execution_complete")
        assert len(approved) == len(run)
        return len(run)

    async def until_told_of_task(self, task_id: str) -> None:
        def is_of_task(data: dict[str, Any]) -> bool:
            return (data["notice"]["taskId"], data["notice"]["kind"]) == (task_id, "completed")

        async with patience():
            while not (told := [data for data in self.of("holdfast.task_notified") if is_of_task(data)]):
                self._news.clear()
                await self._news.wait()
        assert len(told) == 1

    async def check_unbroken(self) -> None:
        assert not self.is_broken
        positions = [int(frame.id) for frame in self.frames if frame.kind == "event"]
        assert positions == list(range(positions[0], positions[-1] + 1)), "every event once, in order"


class TerminalSurface:
    """A person before `holdfast chat`, at a terminal that can show lines and no more."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal

    async def send(self, text: str) -> None:
        self.terminal.type(f"{text}\n")

    async def until_asked(self, request_id: str) -> None:
        await self.terminal.until(f"(request {request_id[:8]})")

    async def approve(self, request_id: str) -> None:
        self.terminal.type("y\n")

    async def until_said(self, text: str) -> None:
        await self.terminal.until(f"\n{text}\n")

    async def said(self) -> Said:
        """The terminal showed the person's own words as they typed them, without the mark that others' words have.
        In these tests people ask, and the model does not."""
        said: Said = []
        for line in self.terminal.text.splitlines():
            words = line.removeprefix("> ").removesuffix(" (joined the running turn)").removesuffix(" (was queued)")
            if words.endswith("?") and not line.startswith("· "):
                said.append(("user", words))
            elif words.endswith(".") and not line.startswith("Continuing session"):
                said.append(("assistant", words))
        return said

    async def approvals(self) -> int:
        text = self.terminal.text
        assert text.count("✓ Approved") == text.count("✓ exec")
        return text.count("✓ exec")

    async def until_told_of_task(self, task_id: str) -> None:
        assert (await self.terminal.until(f"✓ Task {task_id} completed")).count(f"Task {task_id} completed") == 1

    async def check_unbroken(self) -> None:
        assert "✗" not in self.terminal.text
        self.terminal.type("\x04")
        assert await self.terminal.ended() == 0, self.terminal.text


class Chat(Protocol):
    """A client of the AI SDK."""

    async def say(self, text: str) -> dict[str, Any]:
        """Send, and read until the turn waits or ends; the message as it is then."""

    async def approve(self, message: dict[str, Any]) -> None:
        """Approve what a message asks for, and read what comes of it."""

    async def come_back(self) -> dict[str, Any]:
        """The last turn, as it is told to who resumes its stream in place."""

    async def reload(self) -> list[dict[str, Any]]:
        """The whole conversation, as a page has it that is opened anew."""


class NpmChat:
    """The package `ai`, as it is."""

    def __init__(self, node: Node, talk: Talk) -> None:
        self._node = node
        self._talk = talk
        self._client: NodeClient | None = None

    async def say(self, text: str) -> dict[str, Any]:
        seen = await (await self._opened()).send(text)
        assert (seen.status, seen.error) == ("ready", None)
        return seen.answer

    async def approve(self, message: dict[str, Any]) -> None:
        client = await self._opened()
        await client.do("approve", id=asked_of(message)["approval"]["id"], approved=True)
        await client.do("until_text", text=".")  # It goes on by itself.
        await client.do("until", status="ready")
        seen = await client.look()
        assert (seen.error, seen.answer["id"], seen.roles[-2:]) == (None, message["id"], ["user", "assistant"])

    async def come_back(self) -> dict[str, Any]:
        seen = await (await self._opened()).resume()
        assert (seen.status, seen.error) == ("ready", None)
        return seen.answer

    async def reload(self) -> list[dict[str, Any]]:
        seen = await (await self._new(messages=await self._talk.messages())).resume()
        assert (seen.status, seen.error) == ("ready", None)
        return seen.messages

    async def _opened(self) -> NodeClient:
        if self._client is None:
            self._client = await self._new(automatic="approvals")
        return self._client

    async def _new(self, **options: Any) -> NodeClient:
        return await NodeClient.of(self._node, self._talk.server, "ai7", self._talk.name, **options)


class PlainChat:
    """The same requests by hand, where that package can't be had."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    async def say(self, text: str) -> dict[str, Any]:
        return await (await self._talk.send(text, f"by-hand-{next(_numbers)}")).message()

    async def approve(self, message: dict[str, Any]) -> None:
        part = asked_of(message)
        given = {**part, "state": "approval-responded", "approval": {**part["approval"], "approved": True}}
        answer = await self._talk.give(message["id"], given)
        await answer.rest()
        assert answer.is_done

    async def come_back(self) -> dict[str, Any]:
        return await (await self._talk.replay()).message()

    async def reload(self) -> list[dict[str, Any]]:
        loaded = await self._talk.messages()
        return [*loaded, await (await self._talk.replay()).message()]


def asked_of(message: dict[str, Any]) -> dict[str, Any]:
    """The part of a message that asks for an approval."""
    (part,) = [part for part in message["parts"] if part.get("state") == "approval-requested"]
    return dict(part)


class ChatSurface:
    """Reads the turn that it has started, and comes back for what others did: nothing is pushed to a page at rest."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    async def send(self, text: str) -> None:
        await self.chat.say(text)

    async def until_asked(self, request_id: str) -> None:
        await self._until(
            lambda message: any(part.get("approval", {}).get("id") == request_id for part in message["parts"])
        )

    async def approve(self, request_id: str) -> None:
        message = await self.chat.come_back()
        assert asked_of(message)["approval"]["id"] == request_id
        await self.chat.approve(message)

    async def until_said(self, text: str) -> None:
        await self._until(lambda message: text in text_of(message))

    async def said(self) -> Said:
        return [said for message in await self.chat.reload() for said in said_in(message)]

    async def approvals(self) -> int:
        parts = [part for message in await self.chat.reload() for part in message["parts"]]
        run = [part for part in parts if part["type"].startswith("tool-")]
        assert all(part["state"] == "output-available" for part in run)
        return len(run)

    async def until_told_of_task(self, task_id: str) -> None:
        def of_task(message: dict[str, Any]) -> list[Any]:
            tasks = [part["data"] for part in message["parts"] if part["type"] == "data-task"]
            return [task for task in tasks if (task["taskId"], task["kind"]) == (task_id, "completed")]

        assert len(of_task(await self._until(lambda message: bool(of_task(message))))) == 1

    async def check_unbroken(self) -> None:
        await self.chat.reload()

    async def _until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with patience():
            while not fits(message := await self.chat.come_back()):
                pass
        return message


def text_of(message: dict[str, Any]) -> list[str]:
    return [part["text"] for part in message["parts"] if part["type"] == "text"]


def said_in(message: dict[str, Any]) -> Said:
    """With what others said while the turn ran."""
    found: Said = []
    for part in message["parts"]:
        if part["type"] == "text":
            found.append((message["role"], part["text"]))
        elif part["type"] == "data-follow-up":
            found.append(("user", part["data"]["text"]))
    return found
