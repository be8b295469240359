"""A session on a server, with the methods of `holdfast.Session`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.client.stream import Stream
from holdfast.client.wire import Wire, WireRequest
from holdfast.events.codec import to_bytes
from holdfast.events.event import Event
from holdfast.events.ids import random_id
from holdfast.protocol.compaction import Compacted, CompactionCancelled, ContextView
from holdfast.protocol.event import EventPage
from holdfast.protocol.home import OUTPUT_BYTES, AnySession
from holdfast.protocol.message import DeliveryChoice, Sent
from holdfast.protocol.permission import Permission, PermissionList
from holdfast.protocol.queue import QueuedView, QueueView
from holdfast.protocol.refusal import Invalid
from holdfast.protocol.request import Answered, RequestList, RequestView
from holdfast.protocol.session import Activity, SessionView
from holdfast.protocol.stop import Stopped
from holdfast.protocol.task import KilledTask, TaskList, TaskOutput, TaskView
from holdfast.protocol.turn import TurnResult

T = TypeVar("T")

MAX_WAIT_SECONDS: Final = 30.0
"""How long one request waits for the end of a compaction, at most."""

_DECISIONS: Final = {True: "approve_for_session", False: "approve"}


class _Detail(msgspec.Struct):
    """The part of a `SessionDetail` that is used: messages of kinds that a newer server adds are not parsed."""

    session: SessionView
    context: ContextView | None = None


class Session(AnySession):
    """One session. Every change carries an id, and is retried under the same id if its response is lost."""

    def __init__(self, wire: Wire, session_id: str, *, patience_seconds: float) -> None:
        self.id = session_id
        self._wire = wire
        self._patience_seconds = patience_seconds
        self._path = f"/v1/sessions/{quote(session_id, safe='')}"

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    # Sending

    async def send(
        self,
        text: str,
        *,
        message_id: str | None = None,
        delivery: DeliveryChoice = "steer",
        unattended: bool = False,
        files: Sequence[str] = (),
    ) -> Sent:
        """Send a message, which is durable on return. Its turn runs whether or not a client follows it.

        `unattended`: no person can be asked, so every call that would need an approval is denied."""
        made = message_id if message_id is not None else random_id()
        body: dict[str, Any] = {"text": text, "message_id": made, "delivery": delivery, "unattended": unattended}
        if files:
            body["files"] = list(files)
        return await self._post("/messages", body, Sent)

    async def go_on(self, *, message_id: str | None = None, unattended: bool = False) -> Sent:
        """Ask the model to go on after a turn that ended with an error. Raises `Conflict` after any other turn."""
        made = message_id if message_id is not None else random_id()
        return await self._post("/continue", {"message_id": made, "unattended": unattended}, Sent)

    async def receipt(self, message_id: str) -> Sent:
        """The current receipt of a message."""
        return await self._get(f"/messages/{quote(message_id, safe='')}", Sent)

    async def run(
        self, text: str, *, message_id: str | None = None, unattended: bool = False, files: Sequence[str] = ()
    ) -> TurnResult:
        """Send a message and wait until its turn ends, or waits for an answer. A program that was restarted meanwhile
        rejoins the same turn by giving the same `message_id`."""
        head = (await self.look()).head
        sent = await self.send(text, message_id=message_id, unattended=unattended, files=files)
        return await self.result_of(sent.message_id, after="0" if sent.duplicate else str(head))

    async def result_of(self, message_id: str, *, after: str = "0") -> TurnResult:
        """Wait until the turn of a message ends, or waits for an answer."""
        return await self._result_from(self.events(after), message_id)

    # Reading

    def stream(self, after: str = "0", *, patience_seconds: float | None = None) -> Stream:
        """A reader whose cursor can be stored. `after` is a cursor or a position. `patience_seconds`: how long the
        server may be away at a time; `math.inf` means for ever."""
        patience = patience_seconds if patience_seconds is not None else self._patience_seconds
        return Stream(self._wire, self.id, after, patience_seconds=patience)

    async def look(self) -> SessionView:
        return (await self._get("", _Detail, limit="1")).session

    async def first_event(self) -> Event | None:
        """The first event of the log, which tells how the session was created; None if the log is empty."""
        page = await self._get("/events", EventPage, after="0", limit="1")
        return page.events[0].event() if page.events else None

    async def activity(self) -> Activity:
        """Whether the session is settled, and its head."""
        return await self._get("/activity", Activity)

    # Answering and stopping

    async def requests(self) -> tuple[RequestView, ...]:
        """The open requests of the session to people and clients."""
        return (await self._get("/requests", RequestList)).requests

    async def permissions(self) -> tuple[Permission, ...]:
        """Permissions that the session has: its own, and those of its directory."""
        return (await self._get("/permissions", PermissionList)).permissions

    async def revoke_permission(self, permission_id: str) -> Permission:
        """Revoke a permission of this session, from its next call on."""
        asked = self._asked("DELETE", f"/permissions/{quote(permission_id, safe='')}", is_repeatable=False)
        return await self._wire.ask(asked, Permission)

    async def approve(self, request_id: str, *, for_session: bool = False, answer_id: str | None = None) -> Answered:
        return await self._answer(request_id, answer_id, {"decision": _DECISIONS[for_session]})

    async def deny(self, request_id: str, *, feedback: str = "", answer_id: str | None = None) -> Answered:
        return await self._answer(request_id, answer_id, {"decision": "deny", "feedback": feedback})

    async def answer(
        self, request_id: str, answer: str, *, was_freeform: bool = True, answer_id: str | None = None
    ) -> Answered:
        """Answer a question."""
        return await self._answer(request_id, answer_id, {"answer": answer, "was_freeform": was_freeform})

    async def give_result(
        self, request_id: str, content: str, *, success: bool = True, answer_id: str | None = None
    ) -> Answered:
        """Give the result of a client-side tool."""
        return await self._answer(request_id, answer_id, {"content": content, "success": success})

    async def _answer(self, request_id: str, answer_id: str | None, content: Mapping[str, Any]) -> Answered:
        made = answer_id if answer_id is not None else random_id()
        return await self._post(f"/requests/{quote(request_id, safe='')}", {"answer_id": made, **content}, Answered)

    async def stop(
        self, *, stop_id: str | None = None, keep_queued: bool = False, turn_id: str | None = None
    ) -> Stopped:
        """Stop the running turn. Waiting messages are removed and returned, unless `keep_queued` is set. With a
        `turn_id`, nothing happens unless that turn is running."""
        made = stop_id if stop_id is not None else random_id()
        asked = {"stop_id": made, "keep_queued": keep_queued, **({} if turn_id is None else {"turn_id": turn_id})}
        return await self._post("/cancel", asked, Stopped)

    # The context

    async def context(self) -> ContextView:
        """How full the session's context is, and how much of its input came from the provider's cache."""
        found = (await self._get("", _Detail, limit="1", usage="true")).context
        if found is None:
            raise Invalid("context_unknown", "This server is older and does not say how full a context is.")
        return found

    async def compact(
        self, *, instructions: str = "", compaction_id: str | None = None, wait_seconds: float = 0
    ) -> Compacted:
        """Summarise the older part of the conversation for the model. `instructions` say what to keep. Waits at most
        `wait_seconds` for the end; the same id again later returns it."""
        made = compaction_id if compaction_id is not None else random_id()
        left = wait_seconds
        while True:
            part = min(left, MAX_WAIT_SECONDS)
            asked = {"instructions": instructions, "compaction_id": made, "wait": part}
            compacted = await self._post("/compact", asked, Compacted)
            left -= part
            if compacted.outcome in ("compacted", "failed") or left <= 0:
                return compacted

    async def cancel_compaction(self) -> CompactionCancelled:
        """Give up the compaction that is under way. The context stays as it is."""
        return await self._wire.ask(self._asked("DELETE", "/compact", is_repeatable=False), CompactionCancelled)

    async def pin(self, message_id: str) -> None:
        """Have the model keep a message that a person sent word for word, whatever is compacted."""
        await self._change("PUT", f"/messages/{quote(message_id, safe='')}/pin")

    async def unpin(self, message_id: str) -> None:
        """Let a compaction summarise the message again."""
        await self._change("DELETE", f"/messages/{quote(message_id, safe='')}/pin")

    # The queue

    async def queue(self) -> tuple[QueuedView, ...]:
        """The queued messages, in order."""
        return (await self._get("/queue", QueueView)).messages

    async def edit_queued(self, message_id: str, text: str) -> None:
        await self._change("PATCH", f"/queue/{quote(message_id, safe='')}", {"text": text})

    async def remove_queued(self, message_id: str) -> None:
        await self._change("DELETE", f"/queue/{quote(message_id, safe='')}")

    # The session itself

    async def rename(self, title: str) -> None:
        await self._change("PATCH", "", {"title": title})

    async def move(self, working_directory: str) -> None:
        """Change the working directory. With the same path, the session uses the folder that is there now."""
        await self._change("PATCH", "", {"working_directory": working_directory})

    async def change_model(self, model: str) -> None:
        """Change the model, from the next step on."""
        await self._change("PATCH", "", {"model": model})

    async def fork(self, *, at: int | None = None, title: str | None = None) -> "Session":
        """A new session with a copy of this log, up to a position or complete."""
        body = {} if title is None else {"title": title}
        query = {} if at is None else {"at": str(at)}
        asked = self._asked("POST", "/fork", body, query=query, is_repeatable=False)
        made = await self._wire.ask(asked, SessionView)
        return Session(self._wire, made.id, patience_seconds=self._patience_seconds)

    async def export(self) -> bytes:
        """The session as one document, for `Server.import_session`."""
        return await self._wire.ask_bytes(self._asked("GET", "/export"))

    async def delete(self) -> None:
        await self._change("DELETE", "")

    # Tasks

    async def tasks(self) -> tuple[TaskView, ...]:
        """The session's commands, including the one that the turn waits for."""
        return (await self._get("/tasks", TaskList)).tasks

    async def task(self, task_id: str) -> TaskView:
        return await self._get(f"/tasks/{quote(task_id, safe='')}", TaskView)

    async def kill_task(self, task_id: str) -> KilledTask:
        asked = self._asked("DELETE", f"/tasks/{quote(task_id, safe='')}", is_repeatable=False)
        return await self._wire.ask(asked, KilledTask)

    async def to_background(self, task_id: str) -> None:
        """Have the turn continue without waiting for this command."""
        await self._change("POST", f"/tasks/{quote(task_id, safe='')}/background")

    async def task_output(
        self, task_id: str, offset: int = 0, length: int = OUTPUT_BYTES, *, wait_seconds: float = 0
    ) -> TaskOutput:
        """A part of a task's output, also while it runs. A negative offset counts from the end of the present output.
        `wait_seconds`: how long to wait for output if there is none."""
        place = {"offset": str(offset)} if offset >= 0 else {"tail": str(-offset)}
        query = {**place, "length": str(length), "wait": str(wait_seconds)}
        asked = self._asked("GET", f"/tasks/{quote(task_id, safe='')}/output", query=query)
        return await self._wire.ask(asked, TaskOutput)

    async def output_size(self, task_id: str) -> int:
        """How many bytes a task has written by now."""
        query = {"tail": "0", "length": "1"}
        path = f"/tasks/{quote(task_id, safe='')}/output"
        return (await self._wire.ask(self._asked("GET", path, query=query), TaskOutput)).offset

    # Requests

    async def _get(self, path: str, kind: type[T], **query: str) -> T:
        return await self._wire.ask(self._asked("GET", path, query=query), kind)

    async def _post(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        return await self._wire.ask(self._asked("POST", path, body), kind)

    async def _change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        await self._wire.ask_bytes(self._asked(method, path, body))

    def _asked(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        is_repeatable: bool = True,
    ) -> WireRequest:
        return WireRequest(
            method=method,
            path=self._path + path,
            query=query or {},
            body=to_bytes(body) if body is not None else None,
            is_repeatable=is_repeatable,
        )
