"""Finds what a person means: a session, a request or a task by the beginning of its id, the session of a folder."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.app import Runtime
from holdfast.cli.errors import WORLD, Refusal
from holdfast.events.event import Event
from holdfast.events.ids import Key, Position, RequestId
from holdfast.events.inbox import Answer
from holdfast.events.request import ExternalToolRequested, PermissionRequested, UserInputRequested
from holdfast.events.session import SessionStarted
from holdfast.store.store import RequestRow, Row
from holdfast.store.tasks import TaskRow

MIN_PREFIX: Final = 4
"""Fewer characters of an id are a guess."""

PAGE: Final = 200

CLOSED_IN_SESSIONS: Final = 50
"""How many of the latest sessions are searched for a request that is no longer open."""


class Waiting(NamedTuple):
    """A request and the session that it belongs to."""

    row: Row
    request: RequestRow


async def all_rows(runtime: Runtime, text: str = "") -> AsyncIterator[Row]:
    """Every session, the newest first."""
    after: str | None = None
    while True:
        page = await runtime.operations.sessions(runtime.owner, limit=PAGE, after=after, text=text)
        for row in page.rows:
            yield row
        after = page.next
        if after is None:
            return


async def find_session(runtime: Runtime, wanted: str) -> Row:
    """The session whose id is this, or begins with it."""
    exact = await runtime.store.row(Key(runtime.owner, runtime.open(wanted).id))
    if exact is not None:
        return exact
    if len(wanted) < MIN_PREFIX:
        raise Refusal("session_not_found", f"There is no session {wanted}. Give at least 4 characters of its id.")
    found = [row async for row in all_rows(runtime) if row.key.session.startswith(wanted)]
    if not found:
        raise Refusal("session_not_found", f"There is no session {wanted}. `holdfast sessions list` shows them.")
    if len(found) > 1:
        raise Refusal("id_ambiguous", f"{len(found)} sessions begin with {wanted}. Give more of the id.")
    return found[0]


async def unfinished_here(runtime: Runtime, folder: Path) -> Row | None:
    """The latest session of this folder that has something left to do, or a task of which it was not told the end."""
    tasks = await runtime.tasks.of_owner(runtime.owner)
    at_work = {task.key for task in tasks if task.status == "running"}
    async for row in all_rows(runtime):
        unfinished = row.status != "idle" or row.waiting_messages > 0 or row.open_requests > 0 or row.key in at_work
        if unfinished and await folder_of(runtime, row) == str(folder):
            return row
    return None


async def folder_of(runtime: Runtime, row: Row) -> str | None:
    first = await runtime.store.events_after(row.key, Position(0), limit=1)
    body = first[0].body if first else None
    return body.working_directory if isinstance(body, SessionStarted) else None


async def find_task(runtime: Runtime, wanted: str, *, within: Key | None = None) -> TaskRow:
    """The task whose id is this, or begins with it; `within` looks in one session only."""
    rows = await runtime.tasks.of_owner(runtime.owner)
    found = [row for row in rows if within is None or row.key == within]
    for row in found:
        if row.task_id == wanted:
            return row
    if len(wanted) < MIN_PREFIX:
        raise Refusal("task_not_found", f"There is no task {wanted}. Give at least 4 characters of its id.")
    found = [row for row in found if row.task_id.startswith(wanted)]
    if not found:
        raise Refusal("task_not_found", f"There is no task {wanted}. {_listed(within)}")
    if len(found) > 1:
        raise Refusal("id_ambiguous", f"{len(found)} tasks begin with {wanted}. Give more of the id.")
    return found[0]


def _listed(within: Key | None) -> str:
    return "`holdfast tasks list --all` shows them." if within is None else "/tasks shows those of this session."


async def waiting_requests(runtime: Runtime) -> list[Waiting]:
    """All that waits for an answer, the latest session first."""
    found: list[Waiting] = []
    async for row in all_rows(runtime):
        if row.open_requests:
            found += [Waiting(row, request) for request in await runtime.operations.requests(row.key)]
    return found


async def find_request(runtime: Runtime, wanted: str) -> Waiting:
    """The open request whose id is this, or begins with it. Says so when it is not open any more."""
    if len(wanted) < MIN_PREFIX:
        raise Refusal("request_not_found", f"There is no request {wanted}. Give at least 4 characters of its id.")
    found = [waiting for waiting in await waiting_requests(runtime) if waiting.request.request_id.startswith(wanted)]
    if len(found) > 1:
        raise Refusal("id_ambiguous", f"{len(found)} requests begin with {wanted}. Give more of the id.")
    if found:
        return found[0]
    raise await _why_not_open(runtime, wanted)


async def _why_not_open(runtime: Runtime, wanted: str) -> Refusal:
    asked = await _asked_before(runtime, wanted)
    if asked is None:
        return Refusal("request_not_found", f"There is no request {wanted}. `holdfast requests` shows those that wait.")
    receipt = await runtime.store.receipt(asked[0], f"answer:{asked[1]}")
    if receipt is None or not isinstance(receipt.item, Answer):
        ended = f"The request {wanted} is closed: its turn ended before it was answered."
        return Refusal("request_closed", ended, exit_code=WORLD)
    who = f" by {receipt.item.answered_by}" if receipt.item.answered_by else ""
    return Refusal("answered_already", f"The request {wanted} was already answered{who}.", exit_code=WORLD)


async def _asked_before(runtime: Runtime, wanted: str) -> tuple[Key, RequestId] | None:
    page = await runtime.operations.sessions(runtime.owner, limit=CLOSED_IN_SESSIONS)
    for row in page.rows:
        async for reading in runtime.operations.read(row.key).until_now():
            match reading:
                case Event(body=PermissionRequested() | UserInputRequested() | ExternalToolRequested() as asked):
                    if asked.request_id.startswith(wanted):
                        return row.key, asked.request_id
                case _:
                    pass
    return None
