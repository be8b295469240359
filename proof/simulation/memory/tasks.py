"""The rows of commands. An outcome and its news are written together."""

from msgspec.structs import replace

from holdfast.events import codec
from holdfast.events.ids import Key, TaskId
from holdfast.events.inbox import TaskNews
from holdfast.events.task import TaskNotice
from holdfast.store.store import Unit
from holdfast.store.tasks import Killer, TaskEnding, TaskRow
from proof.simulation.memory import inbox
from proof.simulation.memory.tables import Database, TaskRecord

Written = tuple[bool, str | None]


def write_unit(db: Database, unit: Unit) -> None:
    for opened in unit.opens_tasks:
        db.tasks.setdefault((unit.key, opened.task_id), TaskRecord(_as_stored(unit.key, opened), db.now()))
    for change in unit.changes_tasks:
        found = db.tasks.get((unit.key, change.task_id))
        if found is None:
            continue
        if change.ending is not None and found.row.status == "running":
            _end(db, found, change.ending)
            found.row = replace(found.row, kill_asked=None)
            found.settled = True
        elif change.ending is None and change.goes_on:
            found.row = replace(found.row, foreground=False)
        elif change.ending is None:
            _end_with_turn(found)
    if unit.ends_commands:
        for (key, _), record in db.tasks.items():
            if key == unit.key:
                _end_with_turn(record)


def _as_stored(key: Key, row: TaskRow) -> TaskRow:
    texts = {
        name: _clean(getattr(row, name)) for name in ("command", "description", "directory", "output_file", "alias")
    }
    fresh = replace(row, key=key, status="running", stalled=False, exit_code=None, detail="", ended_at=None)
    return replace(fresh, kill_asked=None, host_silent_ms=0, **texts)


def _end_with_turn(record: TaskRecord) -> None:
    if record.row.foreground and record.row.status == "running":
        record.row = replace(record.row, kill_asked="stop")


def _end(db: Database, record: TaskRecord, ending: TaskEnding) -> None:
    told = {"status": ending.status, "exit_code": ending.exit_code, "detail": _clean(ending.detail)}
    record.row = replace(record.row, ended_at=ending.ended_at, **told)
    record.end_noted_at = db.now()


def end(db: Database, row: TaskRow, ending: TaskEnding, notice: TaskNotice | None, *, host: str, now: int) -> Written:
    found = db.tasks.get((row.key, row.task_id))
    if found is None or found.settled or not (found.row.status == "running" or found.row.host == host):
        return False, None
    kept: Killer | None = "deletion" if found.row.kill_asked == "deletion" else None
    _end(db, found, ending)
    found.row = replace(found.row, stalled=False, kill_asked=kept)
    found.settled = found.row.host == host
    if notice is not None:
        tell(db, row.key, notice, now)
    return True, ending.status


def stall(db: Database, row: TaskRow, notice: TaskNotice | None, *, now: int) -> Written:
    found = db.tasks.get((row.key, row.task_id))
    if found is None or found.row.stalled == (notice is not None):
        return False, None
    if notice is None:
        found.row = replace(found.row, stalled=False)
        return True, "went on"
    if found.row.status != "running" or found.row.foreground:
        return False, None
    found.row = replace(found.row, stalled=True)
    tell(db, row.key, notice, now)
    return True, "stalled"


def tell(db: Database, key: Key, notice: TaskNotice, now: int) -> None:
    """Put the news into the inbox, once for each kind. A session that was deleted meanwhile gets none."""
    session = db.live(key)
    item_key = f"task:{notice.task_id}:{notice.kind}"
    if session is not None and item_key not in session.inbox:
        inbox.add(session, TaskNews(notice=notice), item_key, now=now, wakes=not notice.silent)


def ask_kill(db: Database, key: Key, task_id: TaskId, by: Killer) -> Written:
    found = db.tasks.get((key, task_id))
    if found is None or found.row.status != "running" or found.row.kill_asked is not None:
        return False, None
    found.row = replace(found.row, kill_asked=by)
    return True, by


def drop(db: Database, key: Key, task_id: TaskId) -> Written:
    dropped = db.tasks.pop((key, task_id), None) is not None
    return dropped, "task" if dropped else None


def drop_old(db: Database, ended_seconds: float) -> tuple[int, str | None]:
    old = [
        key
        for key, record in db.tasks.items()
        if record.end_noted_at is not None
        and record.end_noted_at <= db.now() - ended_seconds
        and record.row.kill_asked is None
        and record.row.status != "running"
    ]
    for key in old:
        del db.tasks[key]
    return len(old), "tasks" if old else None


def see_host(db: Database, host: str) -> Written:
    db.hosts[host] = db.now()
    return True, "host"


def visible(db: Database) -> list[TaskRow]:
    """Tasks whose session was not deleted, in the order of their start."""
    return [row for row in _all(db) if row.kill_asked != "deletion"]


def of_host(db: Database, host: str) -> tuple[TaskRow, ...]:
    return tuple(row for row in _at_work(db) if row.host == host)


def strays(db: Database, host: str, silent_seconds: float) -> tuple[TaskRow, ...]:
    return tuple(
        row
        for row in _at_work(db)
        if row.host != host
        and (row.status == "running" or row.kill_asked is not None)
        and row.host_silent_ms >= silent_seconds * 1000
    )


def _silent_ms(db: Database, record: TaskRecord) -> int:
    return int((db.now() - max(db.hosts.get(record.row.host, record.opened_at), record.opened_at)) * 1000)


def _at_work(db: Database) -> list[TaskRow]:
    settled = {(key, task_id) for (key, task_id), record in db.tasks.items() if record.settled}
    return [
        row
        for row in _all(db)
        if row.kill_asked is not None or ((row.key, row.task_id) not in settled and not row.foreground)
    ]


def _all(db: Database) -> list[TaskRow]:
    rows = [replace(record.row, host_silent_ms=_silent_ms(db, record)) for record in db.tasks.values()]
    return sorted(rows, key=lambda row: (row.started_at, row.task_id))


def _clean(text: str) -> str:
    cleaned: str = codec.without_surrogates(text)
    return cleaned
