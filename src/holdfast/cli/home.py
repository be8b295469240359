"""The operations in which a database on this machine and a server differ for a command. All others are the methods of
`protocol.home`, which are the same for both."""

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

import msgspec

from holdfast.app import Runtime
from holdfast.cli.errors import WORLD, Refusal
from holdfast.cli.runtime import open_configured_model
from holdfast.commands.errors import CommandsError, NoSuchCommand
from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded
from holdfast.events.event import Event
from holdfast.events.inbox import Answer
from holdfast.events.message import Usage
from holdfast.events.request import ExternalToolCompleted, PermissionCompleted, UserInputCompleted
from holdfast.protocol.compaction import ContextView
from holdfast.protocol.home import AnySession, Home
from holdfast.protocol.refusal import Conflict, Invalid, NotFound
from holdfast.protocol.task import TaskOutput, TaskView
from holdfast.server.views.tasks import current_tasks
from holdfast.store.tasks import TaskRow
from holdfast.tasks.errors import TaskError

ATTACHED_SECONDS: Final = 60.0
"""The timeout of an attachment that is not repeated."""

LAST_OUTPUT_BYTES: Final = 4_096


class CallUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one model call. None is unknown."""

    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cost_microdollars: int | None


class OutputPiece(NamedTuple):
    """A piece of a task's output."""

    offset: int
    """The position of its first byte. If it is beyond the requested one, the bytes between are not kept any more."""
    data: bytes
    end: int
    """The position after its last byte."""


def runs_elsewhere(home: Home) -> bool:
    """Whether sessions continue when this command ends, because another process runs them."""
    return not isinstance(home, Runtime)


# Sessions


def open_as(home: Home, session_id: str, name: str) -> AnySession:
    """A session whose answers are recorded under this name. A server records the name of the key instead."""
    return home.open(session_id, answered_by=name) if isinstance(home, Runtime) else home.open(session_id)


async def change_model(home: Home, session_id: str, model: str) -> None:
    """Change the model, unless it could not be called: then it is refused, and nothing changes."""
    if isinstance(home, Runtime):
        await open_configured_model(home.config, model).close()
    await home.open(session_id).change_model(model)


async def usage(home: Home, session_id: str) -> Sequence[CallUsage]:
    """The usage of model calls: from the ledger of a database, or as the log of a session on a server reports it."""
    if isinstance(home, Runtime):
        entries = await home.operations.usage(home.owner, home.open(session_id).key.session)
        return [msgspec.convert(entry, CallUsage, from_attributes=True) for entry in entries]
    return [
        msgspec.convert(reading.body, CallUsage, from_attributes=True)
        async for reading in home.open(session_id).events(follow=False)
        if isinstance(reading, Event) and _is_use(reading.body)
    ]


async def context_of(session: AnySession) -> ContextView | None:
    """How full the session's context is; None from a server that is older and does not say so."""
    try:
        return await session.context()
    except Invalid:
        return None


def _is_use(body: Body) -> bool:
    return isinstance(body, Usage) or (isinstance(body, CompactionEnded) and body.is_called)


async def is_settled(session: AnySession, position: int) -> bool:
    """Whether that was the last event and the session waits for a person, a client or a message."""
    try:
        activity = await session.activity()
    except NotFound:
        return True
    return activity.is_settled and activity.head <= position


async def answered_by(home: Home, session_id: str, request_id: str) -> str | None:
    """The name that the answer was given under, which may be empty; None if there is no answer."""
    session = home.open(session_id)
    if isinstance(home, Runtime):
        receipt = await home.store.receipt(home.open(session_id).key, f"answer:{request_id}")
        return receipt.item.answered_by if receipt is not None and isinstance(receipt.item, Answer) else None
    if request_id in [found.id for found in await session.requests()]:
        return None
    for body in [found.body async for found in session.events(follow=False) if isinstance(found, Event)]:
        match body:
            case PermissionCompleted(request_id=found, decision=decision, answered_by=by) if found == request_id:
                return None if decision == "cancelled" else by
            case UserInputCompleted() | ExternalToolCompleted() as closed if closed.request_id == request_id:
                return None if closed.cancelled else closed.answered_by
            case _:
                pass
    return ""  # Accepted, but not promoted yet.


# The presence of a person. A server notes its readers itself, and keeps requests open without an attachment.


async def note_resume(home: Home, session_id: str) -> None:
    if isinstance(home, Runtime):
        await home.operations.note_resume(home.open(session_id).key)


async def attach(home: Home, session_id: str, attachment_id: str, *, capabilities: tuple[str, ...]) -> None:
    """Announce a client that can answer requests. To be repeated before the attachment times out."""
    if isinstance(home, Runtime):
        key = home.open(session_id).key
        await home.operations.attach(key, attachment_id, capabilities=capabilities, ttl_seconds=ATTACHED_SECONDS)


async def detach(home: Home, session_id: str, attachment_id: str) -> None:
    if isinstance(home, Runtime):
        await home.operations.detach(home.open(session_id).key, attachment_id)


# Tasks. The output of a database's tasks is raw; a server sends it as text, without known secrets.


async def tasks_of(home: Home, session_id: str | None = None, *, foreground: bool = True) -> Sequence[TaskView]:
    """The tasks of one session or of all, in their current state, the oldest first."""
    if isinstance(home, Runtime):
        operations, now = home.task_operations, home.clock.now_ms()
        if session_id is None:
            return await current_tasks(operations, await operations.of_owner(home.owner), now=now)
        rows = await operations.of_session(home.open(session_id).key, foreground=foreground)
        return await current_tasks(operations, rows, now=now)
    found = await (home.tasks() if session_id is None else home.open(session_id).tasks())
    return [task for task in found if foreground or not task.foreground]


async def last_output(home: Home, task: TaskView) -> str | None:
    """The end of its output; None if that is on another machine."""
    if isinstance(home, Runtime):
        row, desk = await _row(home, task), home.task_operations.desk
        return await desk.tail(row) if row.host == desk.host else None
    try:
        part = await home.open(task.session_id).task_output(task.id, -LAST_OUTPUT_BYTES, LAST_OUTPUT_BYTES)
    except NotFound:
        return ""
    except Conflict:
        return None
    return part.text


async def output_size(home: Home, task: TaskView) -> int:
    if not isinstance(home, Runtime):
        return await home.open(task.session_id).output_size(task.id)
    try:
        return await home.task_operations.desk.size(await _row(home, task))
    except TaskError as error:
        raise Refusal(error.code, f"{error}.", exit_code=WORLD) from error
    except NoSuchCommand:
        gone = f"The output of task {task.id} is not kept any more."
        raise Refusal("output_gone", gone, exit_code=WORLD) from None
    except CommandsError as error:
        raise Refusal("commands_unavailable", f"{error}.", exit_code=WORLD) from error


async def output(home: Home, task: TaskView, offset: int, length: int) -> OutputPiece:
    if not isinstance(home, Runtime):
        return _piece(await home.open(task.session_id).task_output(task.id, offset, length))
    chunk = await home.task_operations.read(home.open(task.session_id).key, task.id, offset, length)
    return OutputPiece(chunk.offset, chunk.data, chunk.end)


async def follow_output(home: Home, task: TaskView, offset: int) -> AsyncIterator[OutputPiece]:
    """Its output from this position on, until it ends."""
    if not isinstance(home, Runtime):
        async for part in home.open(task.session_id).follow_task(task.id, offset):
            yield _piece(part)
        return
    async for chunk in home.task_operations.follow(home.open(task.session_id).key, task.id, offset):
        yield OutputPiece(chunk.offset, chunk.data, chunk.end)


def _piece(part: TaskOutput) -> OutputPiece:
    return OutputPiece(part.offset, part.text.encode(), part.next_offset)


async def _row(runtime: Runtime, task: TaskView) -> TaskRow:
    return await runtime.task_operations.find(runtime.open(task.session_id).key, task.id)
