"""Lookup of the thing that a person means: a session, request or task by the beginning of its id, or the unfinished
session of a folder."""

from typing import Final, NamedTuple, TypeVar

from holdfast.cli.errors import WORLD, Refusal
from holdfast.cli.home import answered_by, tasks_of
from holdfast.cli.request_lines import OpenedRequest
from holdfast.cli.setup import Folder
from holdfast.events.event import Event
from holdfast.events.message import UserMessage
from holdfast.events.request import ExternalToolRequested, PermissionRequested, UserInputRequested
from holdfast.events.session import SessionStarted, Truncated
from holdfast.events.tool import ToolStarted
from holdfast.protocol.home import AnySession, Home
from holdfast.protocol.request import RequestView
from holdfast.protocol.session import SessionView
from holdfast.protocol.task import TaskView
from holdfast.server.errors import NotFound

MIN_PREFIX: Final = 4
"""Fewer characters of an id could name the wrong thing."""

CLOSED_IN_SESSIONS: Final = 50
"""How many of the latest sessions are searched for a request that is no longer open."""

Found = TypeVar("Found")


def check_prefix(noun: str, wanted: str) -> None:
    """Refuse too few characters of an id."""
    if len(wanted) < MIN_PREFIX:
        raise _not_found(noun, wanted, f"Give at least {MIN_PREFIX} characters of its id.")


def only_match(noun: str, wanted: str, found: list[Found], *, advice: str) -> Found:
    """The only match of the beginning of an id. `advice` says where to look if there is none."""
    if not found:
        raise _not_found(noun, wanted, advice)
    if len(found) > 1:
        raise Refusal("id_ambiguous", f"{len(found)} {noun}s begin with {wanted}. Give more of the id.")
    return found[0]


def _not_found(noun: str, wanted: str, advice: str) -> Refusal:
    return Refusal(f"{noun}_not_found", f"There is no {noun} {wanted}. {advice}")


# Sessions


async def find_session(home: Home, wanted: str) -> SessionView:
    """The session with this id, or the only one whose id begins with it."""
    if wanted:
        try:
            return await home.open(wanted).look()
        except NotFound:
            pass  # It may be the beginning of one.
    check_prefix("session", wanted)
    found = [session async for session in home.sessions() if session.id.startswith(wanted)]
    return only_match("session", wanted, found, advice="`holdfast sessions list` shows them.")


async def unfinished_session(home: Home, folder: Folder) -> SessionView | None:
    """The latest session of this folder that has work to do, an open request or a running task."""
    at_work = {task.session_id for task in await tasks_of(home) if task.is_running}
    async for found in home.sessions():
        has_work = found.waiting_messages > 0 or found.pending_requests > 0 or found.id in at_work
        if found.status != "idle" or has_work:
            started = await _started(home, found)
            if started is not None and folder.is_of(started):
                return found
    return None


async def folder_of(home: Home, session: SessionView) -> str | None:
    started = await _started(home, session)
    return started.working_directory if started is not None else None


async def _started(home: Home, session: SessionView) -> SessionStarted | None:
    first = await home.open(session.id).first_event()
    return first.body if first is not None and isinstance(first.body, SessionStarted) else None


# Messages


async def find_message(session: AnySession, wanted: str, *, pinned: bool = False) -> str:
    """The id of the last message of a person, of the message with this id, or of the last one with this text in it.
    `pinned`: among the pinned ones only. A message that was taken back by a rewind is not found."""
    events = [reading async for reading in session.events(follow=False) if isinstance(reading, Event)]
    said: list[tuple[int, UserMessage]] = []
    for event in events:
        if isinstance(event.body, UserMessage):
            said.append((event.position, event.body))
        elif isinstance(event.body, Truncated):
            kept = event.body.kept
            said = [found for found in said if found[0] <= kept]
    ids = set((await session.context()).pinned) if pinned else {message.message_id for _, message in said}
    known = [message for _, message in said if message.message_id in ids]
    for message in reversed(known):
        is_named = message.message_id == wanted or wanted.casefold() in message.content.casefold()
        if not wanted or is_named:
            return message.message_id
    among = "pinned message" if pinned else "message of yours"
    raise Refusal(
        "message_not_found", f"There is no {among} with {wanted!r} in it." if wanted else f"There is no {among}."
    )


# Tasks


async def find_task(home: Home, wanted: str, *, within: str | None = None) -> TaskView:
    """The task with this id, or the only one whose id begins with it; `within` looks in one session only."""
    known = [task for task in await tasks_of(home) if within is None or task.session_id == within]
    for task in known:
        if task.id == wanted:
            return task
    check_prefix("task", wanted)
    advice = "`holdfast tasks list --all` shows them." if within is None else "/tasks shows those of this session."
    return only_match("task", wanted, [task for task in known if task.id.startswith(wanted)], advice=advice)


# Requests


class WaitingRequest(NamedTuple):
    """An open request and the session that it belongs to."""

    session: SessionView
    request: RequestView


class RequestDetail(NamedTuple):
    """A request as the log has it, with the arguments of its tool call as JSON."""

    opened: OpenedRequest
    arguments: str = ""


async def waiting_requests(home: Home) -> list[WaitingRequest]:
    """All open requests, those of the latest session first."""
    found: list[WaitingRequest] = []
    async for session in home.sessions():
        if session.pending_requests:
            found += [WaitingRequest(session, request) for request in await home.open(session.id).requests()]
    return found


async def request_details(home: Home, session_id: str) -> dict[str, RequestDetail]:
    """All requests that a session ever opened, by their ids."""
    arguments: dict[str, str] = {}
    found: dict[str, RequestDetail] = {}
    async for reading in home.open(session_id).events(follow=False):
        match reading:
            case Event(body=ToolStarted(tool_call_id=call, arguments=given)):
                arguments[call] = given
            case Event(body=PermissionRequested() | UserInputRequested() | ExternalToolRequested() as opened):
                found[opened.request_id] = RequestDetail(opened, arguments.get(opened.tool_call_id, ""))
            case _:
                pass
    return found


async def find_request(home: Home, wanted: str) -> WaitingRequest:
    """The only open request whose id begins with this. The refusal says if the request was already closed."""
    check_prefix("request", wanted)
    found = [waiting for waiting in await waiting_requests(home) if waiting.request.id.startswith(wanted)]
    if not found and (closed := await _closed_request(home, wanted)) is not None:
        raise await _closed_refusal(home, wanted, *closed)
    return only_match("request", wanted, found, advice="`holdfast requests` shows those that wait.")


async def _closed_refusal(home: Home, wanted: str, session_id: str, request_id: str) -> Refusal:
    name = await answered_by(home, session_id, request_id)
    if name is None:
        ended = f"The request {wanted} is closed: its turn ended before it was answered."
        return Refusal("request_closed", ended, exit_code=WORLD)
    who = f" by {name}" if name else ""
    return Refusal("answered_already", f"The request {wanted} was already answered{who}.", exit_code=WORLD)


async def _closed_request(home: Home, wanted: str) -> tuple[str, str] | None:
    """The ids of the session and of the request, if one of the latest sessions opened such a request."""
    searched = 0
    async for session in home.sessions():
        searched += 1
        if searched > CLOSED_IN_SESSIONS:
            break
        for request_id in await request_details(home, session.id):
            if request_id.startswith(wanted):
                return session.id, request_id
    return None
