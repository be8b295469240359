"""Finds what a person means: a session, a request or a task by the beginning of its id, the session of a folder."""

from typing import Final, NamedTuple

from holdfast.cli.errors import WORLD, Refusal
from holdfast.cli.home import Folder, Home
from holdfast.cli.request_lines import OpenedRequest
from holdfast.client.views import RequestView, SessionView, Task
from holdfast.events.event import Event
from holdfast.events.request import ExternalToolRequested, PermissionRequested, UserInputRequested
from holdfast.events.tool import ToolStarted
from holdfast.server.errors import NotFound

MIN_PREFIX: Final = 4
"""Fewer characters of an id are a guess."""

CLOSED_IN_SESSIONS: Final = 50
"""How many of the latest sessions are searched for a request that is no longer open."""


class WaitingRequest(NamedTuple):
    """A request and the session that it belongs to."""

    session: SessionView
    request: RequestView


async def find_session(home: Home, wanted: str) -> SessionView:
    """The session whose id is this, or begins with it."""
    if wanted:
        try:
            return await home.session(wanted)
        except NotFound:
            pass  # It may be the beginning of one.
    if len(wanted) < MIN_PREFIX:
        raise Refusal("session_not_found", f"There is no session {wanted}. Give at least 4 characters of its id.")
    found = [session async for session in home.sessions() if session.id.startswith(wanted)]
    if not found:
        raise Refusal("session_not_found", f"There is no session {wanted}. `holdfast sessions list` shows them.")
    if len(found) > 1:
        raise Refusal("id_ambiguous", f"{len(found)} sessions begin with {wanted}. Give more of the id.")
    return found[0]


async def unfinished_session(home: Home, folder: Folder) -> SessionView | None:
    """The latest session of this folder that has something left to do, or a task of which it was not told the end."""
    at_work = {task.session_id for task in await home.tasks() if task.is_running}
    async for found in home.sessions():
        has_work = found.waiting_messages > 0 or found.pending_requests > 0 or found.id in at_work
        if (found.status != "idle" or has_work) and await _is_of(home, found, folder):
            return found
    return None


async def _is_of(home: Home, session: SessionView, folder: Folder) -> bool:
    started = await home.started(session.id)
    return started is not None and folder.is_of(started)


async def folder_of(home: Home, session: SessionView) -> str | None:
    started = await home.started(session.id)
    return started.working_directory if started is not None else None


async def find_task(home: Home, wanted: str, *, within: str | None = None) -> Task:
    """The task whose id is this, or begins with it; `within` looks in one session only."""
    found = [task for task in await home.tasks() if within is None or task.session_id == within]
    for task in found:
        if task.id == wanted:
            return task
    if len(wanted) < MIN_PREFIX:
        raise Refusal("task_not_found", f"There is no task {wanted}. Give at least 4 characters of its id.")
    found = [task for task in found if task.id.startswith(wanted)]
    if not found:
        raise Refusal("task_not_found", f"There is no task {wanted}. {_listed(within)}")
    if len(found) > 1:
        raise Refusal("id_ambiguous", f"{len(found)} tasks begin with {wanted}. Give more of the id.")
    return found[0]


def _listed(within: str | None) -> str:
    return "`holdfast tasks list --all` shows them." if within is None else "/tasks shows those of this session."


async def waiting_requests(home: Home) -> list[WaitingRequest]:
    """All that waits for an answer, the latest session first."""
    found: list[WaitingRequest] = []
    async for session in home.sessions():
        if session.pending_requests:
            found += [WaitingRequest(session, request) for request in await home.requests(session.id)]
    return found


class RequestDetail(NamedTuple):
    """A request as the log has it, with what its tool call was given."""

    asked: OpenedRequest
    arguments: str = ""


async def request_details(home: Home, session_id: str) -> dict[str, RequestDetail]:
    """Everything that a session ever asked, by the id of the request."""
    arguments: dict[str, str] = {}
    found: dict[str, RequestDetail] = {}
    async for reading in home.read(session_id).until_now():
        match reading:
            case Event(body=ToolStarted(tool_call_id=call, arguments=given)):
                arguments[call] = given
            case Event(body=PermissionRequested() | UserInputRequested() | ExternalToolRequested() as asked):
                found[asked.request_id] = RequestDetail(asked, arguments.get(asked.tool_call_id, ""))
            case _:
                pass
    return found


async def find_request(home: Home, wanted: str) -> WaitingRequest:
    """The open request whose id is this, or begins with it. Says so when it is not open any more."""
    if len(wanted) < MIN_PREFIX:
        raise Refusal("request_not_found", f"There is no request {wanted}. Give at least 4 characters of its id.")
    found = [waiting for waiting in await waiting_requests(home) if waiting.request.id.startswith(wanted)]
    if len(found) > 1:
        raise Refusal("id_ambiguous", f"{len(found)} requests begin with {wanted}. Give more of the id.")
    if found:
        return found[0]
    raise await _why_not_open(home, wanted)


async def _why_not_open(home: Home, wanted: str) -> Refusal:
    asked = await _asked_before(home, wanted)
    if asked is None:
        return Refusal("request_not_found", f"There is no request {wanted}. `holdfast requests` shows those that wait.")
    answered_by = await home.answered_by(*asked)
    if answered_by is None:
        ended = f"The request {wanted} is closed: its turn ended before it was answered."
        return Refusal("request_closed", ended, exit_code=WORLD)
    who = f" by {answered_by}" if answered_by else ""
    return Refusal("answered_already", f"The request {wanted} was already answered{who}.", exit_code=WORLD)


async def _asked_before(home: Home, wanted: str) -> tuple[str, str] | None:
    searched = 0
    async for session in home.sessions():
        searched += 1
        if searched > CLOSED_IN_SESSIONS:
            break
        found = [asked for asked in await request_details(home, session.id) if asked.startswith(wanted)]
        if found:
            return session.id, found[0]
    return None
