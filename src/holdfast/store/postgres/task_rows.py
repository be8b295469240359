"""The rows of tasks. A change of a task and its news are written in one transaction."""

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.events import codec
from holdfast.events.ids import Key, Owner, SessionId, TaskId
from holdfast.events.inbox import TaskNews
from holdfast.events.task import TaskNotice
from holdfast.store.admission import NewItem
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.puts import locked
from holdfast.store.store import Unit
from holdfast.store.tasks import Killer, TaskEnding, TaskRow

Written = tuple[bool, str | None]


async def write_unit(db: Link, unit: Unit) -> None:
    """Write a unit's changes of tasks."""
    of = (unit.key.owner, unit.key.session)
    for row in unit.opens_tasks:
        about = (row.tool_call_id, row.call_key, _clean(row.command), _clean(row.description), _clean(row.directory))
        where = (row.host, _clean(row.output_file), _clean(row.alias), row.foreground, row.started_at)
        await db.run("open_tasks", *of, row.task_id, *about, *where)
    for change in unit.changes_tasks:
        if change.ending is not None:
            await db.run("end_foreground_task", *of, change.task_id, *_ending(change.ending))
        elif change.goes_on:
            await db.run("task_to_background", *of, change.task_id)
        else:
            await db.run("end_foreground_tasks", *of, change.task_id)
    if unit.ends_commands:
        await db.run("end_foreground_tasks", *of, None)


async def end(db: Link, row: TaskRow, ending: TaskEnding, notice: TaskNotice | None, *, host: str, now: int) -> Written:
    """Lock order, as everywhere: the session's row before the task's."""
    tell = await _teller(db, row.key, notice, now)
    if await db.run("end_task", row.key.owner, row.key.session, row.task_id, *_ending(ending), host) == 0:
        return False, None
    await tell()
    return True, ending.status


async def stall(db: Link, row: TaskRow, notice: TaskNotice | None, *, now: int) -> Written:
    of = (row.key.owner, row.key.session, row.task_id)
    if notice is None:
        found = await db.run("unstall_task", *of) == 1
        return found, "went on" if found else None
    tell = await _teller(db, row.key, notice, now)
    if await db.run("stall_task", *of) == 0:
        return False, None
    await tell()
    return True, "stalled"


async def _teller(db: Link, key: Key, notice: TaskNotice | None, now: int) -> Callable[[], Any]:
    """A function that puts news into the inbox, once for each kind. A session that was deleted meanwhile gets none."""
    inbox = await locked(db, key, now=now)

    async def tell() -> None:
        if notice is None or inbox is None:
            return
        item_key = f"task:{notice.task_id}:{notice.kind}"
        if await db.row("item", *inbox.of, item_key) is not None:
            return
        item = TaskNews(notice=notice)
        await inbox.add(NewItem(item=item, key=item_key, payload=codec.encode_item(item)))
        if notice.silent:
            await inbox.raise_tail()
        else:
            await inbox.wake()

    return tell


async def ask_kill(db: Link, key: Key, task_id: TaskId, by: Killer) -> Written:
    asked = await db.run("kill_task", key.owner, key.session, task_id, by) == 1
    return asked, by if asked else None


async def drop(db: Link, key: Key, task_id: TaskId) -> Written:
    dropped = await db.run("drop_task", key.owner, key.session, task_id) == 1
    return dropped, "task" if dropped else None


async def drop_old(db: Link, ended_seconds: float) -> tuple[int, str | None]:
    dropped = await db.run("drop_old_tasks", int(ended_seconds * 1000))
    return dropped, "tasks" if dropped else None


async def see_host(db: Link, host: str) -> Written:
    await db.run("see_host", host)
    return True, "host"


async def of_session(
    db: Link, key: Key, task_id: TaskId | None = None, *, only_running: bool = False
) -> tuple[TaskRow, ...]:
    return await _rows(db, "session_tasks", key.owner, key.session, task_id, only_running)


async def of_owner(db: Link, owner: Owner) -> tuple[TaskRow, ...]:
    return await _rows(db, "owner_tasks", owner)


async def of_host(db: Link, host: str) -> tuple[TaskRow, ...]:
    return await _rows(db, "host_tasks", host)


async def strays(db: Link, host: str, silent_seconds: float) -> tuple[TaskRow, ...]:
    return await _rows(db, "stray_tasks", host, int(silent_seconds * 1000))


async def _rows(db: Link, query: str, *given: Any) -> tuple[TaskRow, ...]:
    return tuple(_row(found) for found in await db.rows(query, *given))


def _row(found: Sequence[Any]) -> TaskRow:
    owner, session, task_id, tool_call_id, call_key, command, description, directory, host, *rest = found
    output_file, alias, foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked, silent = rest
    return TaskRow(
        key=Key(Owner(owner), SessionId(session)),
        task_id=task_id,
        tool_call_id=tool_call_id,
        call_key=call_key,
        command=command,
        description=description,
        directory=directory,
        host=host,
        output_file=output_file,
        alias=alias,
        foreground=foreground,
        status=status,
        stalled=stalled,
        exit_code=exit_code,
        detail=detail,
        started_at=started_at,
        ended_at=ended_at,
        kill_asked=kill_asked or None,
        host_silent_ms=silent,
    )


def _ending(ending: TaskEnding) -> tuple[Any, ...]:
    return ending.status, ending.exit_code, _clean(ending.detail), ending.ended_at


_clean: Callable[[str], str] = codec.without_surrogates
