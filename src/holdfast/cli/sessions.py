"""`holdfast sessions`: list, show, move, delete, export and import sessions."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.cli.context_lines import cancel_line, context_line, outcome_line
from holdfast.cli.errors import WORLD, Refusal
from holdfast.cli.escapes import visible
from holdfast.cli.hints import Hints
from holdfast.cli.home import context_of, tasks_of, usage
from holdfast.cli.lookup import find_message, find_session, folder_of
from holdfast.cli.request_lines import short
from holdfast.cli.screen import wants_color
from holdfast.cli.session_lines import cost, session_line, when
from holdfast.cli.target import Target, open_home
from holdfast.cli.task_lines import processes
from holdfast.cli.transcript import Transcript, one_line, print_pieces
from holdfast.events.event import Event
from holdfast.protocol.event import EventView
from holdfast.protocol.home import Home
from holdfast.protocol.session import SessionView
from holdfast.protocol.task import TaskView
from holdfast.server.errors import Conflict

COMPACT_SECONDS: Final = 900.0
"""How long a command waits for a summary: a try at one takes ten minutes at most."""

START_SECONDS: Final = 10.0
"""How long a command waits for a process to start the compaction: there may be none that can run the session."""

GRACE_SECONDS: Final = 0.5
"""How long a command that is done waits for a step that is about to end."""


async def list_sessions(target: Target, *, limit: int, search: str, as_json: bool) -> None:
    async with open_home(target) as home:
        shown = 0
        width = shutil.get_terminal_size((120, 24)).columns
        async for found in home.sessions(text=search):
            if shown == limit:
                break
            shown += 1
            print(_json(found) if as_json else session_line(found, width=width))
    if not shown and not as_json:
        print("No sessions yet. `holdfast chat` starts one." if not search else "No title or message has that in it.")


async def show_session(target: Target, wanted: str, *, events: bool, as_json: bool) -> None:
    async with open_home(target) as home:
        found = await find_session(home, wanted)
        if as_json or events:
            await _show_log(home, found, as_json=as_json, events=events)
        else:
            await _show_conversation(home, found, target.hints)


async def _show_log(home: Home, session: SessionView, *, as_json: bool, events: bool) -> None:
    log = [reading async for reading in home.open(session.id).events(follow=False) if isinstance(reading, Event)]
    shown = [EventView.of(event) for event in log]
    if as_json:
        facts = {
            **msgspec.structs.asdict(session),
            "working_directory": await folder_of(home, session),
            "context": await context_of(home.open(session.id)),
        }
        print(_json({**facts, "events": shown} if events else facts))
        return
    for event in shown:
        data = one_line(bytes(event.data).decode(), 400)
        print(f"{event.position:6}  {when(event.time)}  {visible(event.type)}  {data}")


async def _show_conversation(home: Home, session: SessionView, hints: Hints) -> None:
    color = wants_color(is_terminal=sys.stdout.isatty())
    print(f"Session {visible(session.id)}: {one_line(session.title or '(no title)')}")
    folder = visible(await folder_of(home, session) or "no folder")
    about = [session.status, f"made {when(session.created_at)}", f"in {folder}"]
    print(", ".join(about) + ". " + cost(await usage(home, session.id)))
    if line := context_line(await context_of(home.open(session.id))):
        print(line[0].upper() + line[1:] + ".")
    print()
    transcript = Transcript(hints=hints)
    async for reading in home.open(session.id).events(follow=False):
        print_pieces(transcript.take(reading), color=color)


async def compact_session(target: Target, wanted: str, *, instructions: str, as_json: bool) -> None:
    """Ask for a compaction and wait for its end. On a database, this process makes the summary if no other runs the
    session."""
    async with open_home(target, work=True, grace_seconds=GRACE_SECONDS) as home:
        found = await find_session(home, wanted)
        session = home.open(found.id)
        compacted = await session.compact(instructions=instructions, wait_seconds=START_SECONDS)
        if compacted.outcome == "compacting":
            same_id = compacted.compaction_id
            compacted = await session.compact(
                instructions=instructions, compaction_id=same_id, wait_seconds=COMPACT_SECONDS
            )
    if as_json:
        print(msgspec.json.encode(compacted).decode())
    elif compacted.outcome != "failed":
        print(outcome_line(compacted))
    if compacted.outcome == "failed":
        raise Refusal("not_compacted", outcome_line(compacted), exit_code=WORLD)


async def cancel_compaction(target: Target, wanted: str, *, instructions: str, as_json: bool) -> None:
    """Give up the compaction that is under way."""
    if instructions:
        raise Refusal("invalid", "Give --cancel or --instructions, not both.")
    async with open_home(target, work=True, grace_seconds=GRACE_SECONDS) as home:
        cancelled = await home.open((await find_session(home, wanted)).id).cancel_compaction()
    print(msgspec.json.encode(cancelled).decode() if as_json else cancel_line(cancelled))


async def pin_message(target: Target, wanted: str, message: str, *, pinned: bool) -> None:
    async with open_home(target) as home:
        session = home.open((await find_session(home, wanted)).id)
        message_id = await find_message(session, message, pinned=not pinned)
        await (session.pin(message_id) if pinned else session.unpin(message_id))
    print(f"{'Pinned' if pinned else 'Unpinned'} message {visible(message_id)}.")


async def delete_session(target: Target, wanted: str, *, yes: bool) -> None:
    async with open_home(target) as home:
        found = await find_session(home, wanted)
        tasks = [task for task in await tasks_of(home, found.id) if task.is_running]
        if not yes:
            more = f", end its {len(tasks)} running task{'s' if len(tasks) > 1 else ''}," if tasks else ""
            name = f"{short(found.id)} “{one_line(found.title, 60)}”"
            _confirm(f"Delete session {name}{more} and all of its log? [y/N] ")
        for task in tasks:
            await _kill(home, task)
        await home.open(found.id).delete()
        print(f"Deleted session {short(found.id)}.")


async def _kill(home: Home, task: TaskView) -> None:
    """Kill a task before its session is deleted: there may be no other process that would do it."""
    try:
        killed = await home.open(task.session_id).kill_task(task.id)
    except Conflict:
        return  # It has ended, or is on another machine, whose task keeper kills it after the deletion.
    if killed.escaped_processes:
        left = processes(killed.escaped_processes)
        print(f"holdfast: Not everything of task {task.id} ended. Still running: {left}.", file=sys.stderr)


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise Refusal(
            "not_confirmed",
            "This is no terminal to confirm it at. Add --yes to delete without being asked.",
        )
    if input(question).strip().lower() not in ("y", "yes"):
        raise Refusal("not_confirmed", "Nothing was deleted.")


async def move_session(target: Target, wanted: str, folder: Path) -> None:
    directory = _directory(folder, target)
    async with open_home(target) as home:
        session = await find_session(home, wanted)
        await home.open(session.id).move(directory)
    print(f"Session {short(session.id)} works in {visible(directory)} from its next step on.")


def _directory(folder: Path, target: Target) -> str:
    """The path for the home; one for a server is passed as it was given, because the server has its own folders."""
    return str(folder if target.server is not None else folder.absolute())


async def export_session(target: Target, wanted: str, file: Path | None) -> None:
    async with open_home(target) as home:
        data = await home.open((await find_session(home, wanted)).id).export()
    if file is None:
        sys.stdout.buffer.write(data + b"\n")
        return
    _write_new(file, data)
    print(f"Exported to {visible(str(file))} ({len(data):,} bytes).")


def _write_new(file: Path, data: bytes) -> None:
    """Write a new file that only this user can read: a conversation may hold secrets."""
    with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as written:
        written.write(data)


def _read(file: Path) -> bytes:
    return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()


async def import_session(target: Target, file: Path) -> None:
    data = _read(file)
    async with open_home(target) as home:
        made = await home.import_session(data)
    print(f"Imported as session {made.id}.")


def _json(value: SessionView | dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
