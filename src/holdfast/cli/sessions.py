"""`holdfast sessions`: list, show, delete, export and import."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app import Runtime
from holdfast.cli.errors import Refusal
from holdfast.cli.finding import all_rows, find_session, folder_of
from holdfast.cli.hints import Hints
from holdfast.cli.opening import opened
from holdfast.cli.run import event_json
from holdfast.cli.screen import wants_color
from holdfast.cli.session_lines import cost, session_line, when
from holdfast.cli.task_lines import processes
from holdfast.cli.tasks import refreshed
from holdfast.cli.terminal import Transcript, neutral, one_line, short, styled
from holdfast.config import Config
from holdfast.events.event import Event
from holdfast.server.errors import Conflict
from holdfast.store.store import Row
from holdfast.store.tasks import TaskRow


async def list_sessions(config: Config, *, limit: int, search: str, as_json: bool) -> None:
    async with opened(config, work=False) as runtime:
        shown = 0
        width = shutil.get_terminal_size((120, 24)).columns
        async for row in all_rows(runtime, search):
            if shown == limit:
                break
            shown += 1
            print(_json(row_json(row)) if as_json else session_line(row, width=width))
    if not shown and not as_json:
        print("No sessions yet. `holdfast chat` starts one." if not search else "No session has that in it.")


async def show_session(config: Config, wanted: str, *, events: bool, as_json: bool, hints: Hints) -> None:
    async with opened(config, work=False) as runtime:
        row = await find_session(runtime, wanted)
        if as_json or events:
            await _show_log(runtime, row, as_json=as_json, events=events)
        else:
            await _show_conversation(runtime, row, hints)


async def _show_log(runtime: Runtime, row: Row, *, as_json: bool, events: bool) -> None:
    log = [reading async for reading in runtime.operations.read(row.key).until_now() if isinstance(reading, Event)]
    if as_json:
        told = {**row_json(row), "working_directory": await folder_of(runtime, row)}
        print(_json({**told, "events": [event_json(event) for event in log]} if events else told))
        return
    for event in log:
        found = event_json(event)
        data = one_line(bytes(found["data"]).decode(), 400)
        print(f"{event.position:6}  {when(event.time)}  {neutral(found['name'])}  {data}")


async def _show_conversation(runtime: Runtime, row: Row, hints: Hints) -> None:
    color = wants_color(is_terminal=sys.stdout.isatty())
    print(f"Session {neutral(row.key.session)}: {one_line(row.title or '(no title)')}")
    about = [row.status, f"made {when(row.created_at)}", f"in {neutral(await folder_of(runtime, row) or 'no folder')}"]
    print(", ".join(about) + ". " + cost(await runtime.operations.usage(runtime.owner, row.key.session)))
    print()
    transcript = Transcript(hints=hints)
    async for reading in runtime.operations.read(row.key).until_now():
        sys.stdout.write("".join(styled(piece, color=color) for piece in transcript.take(reading)))
    sys.stdout.flush()


async def delete_session(config: Config, wanted: str, *, yes: bool) -> None:
    async with opened(config, work=False) as runtime:
        row = await find_session(runtime, wanted)
        tasks = await _running_tasks(runtime, row)
        if not yes:
            more = f", end its {len(tasks)} running task{'s' if len(tasks) > 1 else ''}," if tasks else ""
            name = f"{short(row.key.session)} “{one_line(row.title, 60)}”"
            _confirm(f"Delete session {name}{more} and all of its log? [y/N] ")
        for task in tasks:
            await _end(runtime, task)
        await runtime.operations.delete(row.key)
        print(f"Deleted session {short(row.key.session)}.")


async def _running_tasks(runtime: Runtime, row: Row) -> list[TaskRow]:
    rows = await refreshed(runtime, await runtime.tasks.of_session(row.key, foreground=True))
    return [task for task in rows if task.status == "running"]


async def _end(runtime: Runtime, task: TaskRow) -> None:
    """Now, since nothing else may be open that would do it. What can't be ended now is once something opens."""
    try:
        killed = await runtime.tasks.kill(task.key, task.task_id)
    except Conflict:
        return  # It has ended meanwhile, or is on another machine: the deletion leaves word to end it.
    if killed.report.escaped:
        left = processes(killed.report.escaped)
        print(f"holdfast: Not everything of task {task.task_id} ended. Still running: {left}.", file=sys.stderr)


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise Refusal("not_confirmed", "Nobody is here to confirm it. Add --yes to delete without being asked.")
    if input(question).strip().lower() not in ("y", "yes"):
        raise Refusal("not_confirmed", "Nothing was deleted.")


async def export_session(config: Config, wanted: str, file: Path | None) -> None:
    from holdfast.server.transfer import export_session as exported

    async with opened(config, work=False) as runtime:
        data = await exported(runtime.store, (await find_session(runtime, wanted)).key)
    if file is None:
        sys.stdout.buffer.write(data + b"\n")
        return
    _write_new(file, data)
    print(f"Exported to {neutral(str(file))} ({len(data):,} bytes).")


def _write_new(file: Path, data: bytes) -> None:
    """A conversation may hold secrets: it is for this user only, and never replaces a file."""
    with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as written:
        written.write(data)


def _read(file: Path) -> bytes:
    return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()


async def import_session(config: Config, file: Path) -> None:
    from holdfast.server.transfer import import_session as imported

    data = _read(file)
    async with opened(config, work=False) as runtime:
        made = await imported(runtime.operations, runtime.owner, data)
    print(f"Imported as session {made}.")


def row_json(row: Row) -> dict[str, Any]:
    return {
        "session_id": row.key.session,
        "title": row.title,
        "status": row.status,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "open_requests": row.open_requests,
        "waiting_messages": row.waiting_messages,
        "events_in_log": row.head,
    }


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
