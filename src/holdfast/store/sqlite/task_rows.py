"""The rows of tasks. A change of a task and its news are written in one transaction."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.events import codec
from holdfast.events.ids import Key, Owner, SessionId, TaskId
from holdfast.events.inbox import TaskNews
from holdfast.events.task import TaskNotice
from holdfast.store.admission import NewItem
from holdfast.store.sqlite.liveness import boot_id, boottime_ms
from holdfast.store.sqlite.puts import Inbox
from holdfast.store.sqlite.queries import SQL
from holdfast.store.store import Unit
from holdfast.store.tasks import Killer, TaskEnding, TaskRow

Written = tuple[bool, str | None]


def write_unit(db: sqlite3.Connection, unit: Unit) -> None:
    """Write a unit's changes of tasks."""
    of = (unit.key.owner, unit.key.session)
    for row in unit.opens_tasks:
        about = (row.tool_call_id, row.call_key, _clean(row.command), _clean(row.description), _clean(row.directory))
        where = (row.host, _clean(row.output_file), _clean(row.alias), row.foreground, row.started_at)
        db.execute(SQL["open_task"], (*of, row.task_id, *about, *where, boot_id(), boottime_ms()))
    for change in unit.changes_tasks:
        if change.ending is not None:
            db.execute(SQL["end_foreground_task"], (*of, change.task_id, *_ending(change.ending)))
        elif change.goes_on:
            db.execute(SQL["task_to_background"], (*of, change.task_id))
        else:
            db.execute(SQL["end_foreground_tasks"], (*of, change.task_id))
    if unit.ends_commands:
        db.execute(SQL["end_foreground_tasks"], (*of, None))


def end(
    db: sqlite3.Connection,
    row: TaskRow,
    ending: TaskEnding,
    notice: TaskNotice | None,
    *,
    host: str,
    now: int,
) -> Written:
    of = (row.key.owner, row.key.session, row.task_id)
    if db.execute(SQL["end_task"], (*of, *_ending(ending), host)).rowcount == 0:
        return False, None
    if notice is not None:
        _tell(db, row.key, notice, now)
    return True, ending.status


def stall(db: sqlite3.Connection, row: TaskRow, notice: TaskNotice | None, *, now: int) -> Written:
    if notice is None:
        found = db.execute(SQL["unstall_task"], (row.key.owner, row.key.session, row.task_id)).rowcount == 1
        return found, "went on" if found else None
    if db.execute(SQL["stall_task"], (row.key.owner, row.key.session, row.task_id)).rowcount == 0:
        return False, None
    _tell(db, row.key, notice, now)
    return True, "stalled"


def _tell(db: sqlite3.Connection, key: Key, notice: TaskNotice, now: int) -> None:
    """Put news into the inbox, once for each kind. A session that was deleted meanwhile gets none."""
    found = db.execute(SQL["put_session"], (key.owner, key.session)).fetchone()
    item_key = f"task:{notice.task_id}:{notice.kind}"
    if found is None or db.execute(SQL["item"], (key.owner, key.session, item_key)).fetchone() is not None:
        return
    inbox = Inbox(db, key, tail=found[0], turn_id=found[1], now=now)
    item = TaskNews(notice=notice)
    inbox.add(NewItem(item=item, key=item_key, payload=codec.encode_item(item)))
    if notice.silent:
        inbox.raise_tail()
    else:
        inbox.wake()


def ask_kill(db: sqlite3.Connection, key: Key, task_id: TaskId, by: Killer) -> Written:
    asked = db.execute(SQL["kill_task"], (key.owner, key.session, task_id, by)).rowcount == 1
    return asked, by if asked else None


def drop(db: sqlite3.Connection, key: Key, task_id: TaskId) -> Written:
    dropped = db.execute(SQL["drop_task"], (key.owner, key.session, task_id)).rowcount == 1
    return dropped, "task" if dropped else None


def drop_old(db: sqlite3.Connection, ended_seconds: float) -> tuple[int, str | None]:
    dropped = db.execute(SQL["drop_old_tasks"], (int(ended_seconds * 1000),)).rowcount
    return dropped, "tasks" if dropped else None


def see_host(db: sqlite3.Connection, host: str) -> Written:
    db.execute(SQL["see_host"], (host, boot_id(), boottime_ms()))
    return True, "host"


def of_session(db: sqlite3.Connection, key: Key, task_id: TaskId | None = None) -> tuple[TaskRow, ...]:
    return _rows(db, "session_tasks", (key.owner, key.session, task_id))


def running_of_session(db: sqlite3.Connection, key: Key) -> tuple[TaskRow, ...]:
    return _rows(db, "running_session_tasks", (key.owner, key.session))


def of_owner(db: sqlite3.Connection, owner: Owner) -> tuple[TaskRow, ...]:
    return _rows(db, "owner_tasks", (owner,))


def of_host(db: sqlite3.Connection, host: str) -> tuple[TaskRow, ...]:
    return _rows(db, "host_tasks", (host,))


def strays(db: sqlite3.Connection, host: str, silent_seconds: float) -> tuple[TaskRow, ...]:
    found = _rows(db, "stray_tasks", (host,))
    return tuple(row for row in found if row.host_silent_ms >= silent_seconds * 1000)


def _rows(db: sqlite3.Connection, query: str, given: Sequence[Any]) -> tuple[TaskRow, ...]:
    return tuple(_row(found) for found in db.execute(SQL[query], given))


def _row(found: Sequence[Any]) -> TaskRow:
    owner, session, task_id, tool_call_id, call_key, command, description, directory, host, *rest = found
    output_file, alias, foreground, status, stalled, exit_code, detail, started_at, ended_at, kill_asked, *times = rest
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
        foreground=bool(foreground),
        status=status,
        stalled=bool(stalled),
        exit_code=exit_code,
        detail=detail,
        started_at=started_at,
        ended_at=ended_at,
        kill_asked=kill_asked or None,
        host_silent_ms=_silent_ms(*times),
    )


def _silent_ms(seen_boot: str | None, seen_at: int | None, opened_boot: str, opened_at: int) -> int:
    """The time since the machine was last seen, or since the row was written if that is later. A time before this boot
    counts as the time of the boot."""
    boot, now = boot_id(), boottime_ms()
    known = [
        at for at_boot, at in ((seen_boot, seen_at), (opened_boot, opened_at)) if at_boot == boot and at is not None
    ]
    return max(0, now - max(known, default=0))


def _ending(ending: TaskEnding) -> tuple[Any, ...]:
    return ending.status, ending.exit_code, _clean(ending.detail), ending.ended_at


_clean: Callable[[str], str] = codec.without_surrogates
