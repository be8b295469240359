"""What a line that begins with a slash does in a chat."""

import os

from holdfast.cli.conversation import Command, Conversation
from holdfast.cli.finding import find_session, find_task
from holdfast.cli.session_lines import cost, session_line
from holdfast.cli.task_lines import heading, processes, task_line
from holdfast.cli.tasks import refreshed
from holdfast.cli.terminal import one_line
from holdfast.server.errors import Conflict, Invalid

LISTED = 10
NARROW = 56
"""Columns for the list of tasks, two lines for each: it fits any terminal."""

HELP = """\
/stop            end the running turn (Ctrl-C does the same)
/background      let the command that runs go on in the background (Ctrl-B does the same)
/tasks           the commands of this session that run, or ended lately
/kill ID         end one of them
/queue           what waits to be read
/sessions [ID]   the latest sessions, or go on with one of them
/new             start another session; this one keeps its work
/title TEXT      name this session
/model NAME      use another model from the next step on
/usage           what this session used
/quit            leave; the work is kept (Ctrl-D does the same)
A line typed while it works is queued and read at the next step. Alt-Enter starts a new line."""


async def _help(chat: Conversation, rest: str) -> None:
    chat.say("note", HELP)


async def _stop(chat: Conversation, rest: str) -> None:
    await chat.stop()


async def _background(chat: Conversation, rest: str) -> None:
    running = await chat.runtime.tasks.of_session(chat.session.key, foreground=True)
    waited_for = [row for row in running if row.foreground and row.status == "running"]
    if not waited_for:
        raise Conflict("no_command_runs", "No command runs that the turn waits for.")
    for row in waited_for:
        await chat.runtime.tasks.to_background(chat.session.key, row.task_id)


async def _tasks(chat: Conversation, rest: str) -> None:
    found = await chat.runtime.tasks.of_session(chat.session.key, foreground=True)
    rows = await refreshed(chat.runtime, found)
    now = chat.runtime.clock.now_ms()
    if not rows:
        chat.say("note", "· This session has no tasks.")
        return
    chat.say("note", heading(width=NARROW))
    for row in rows:
        chat.say("note", task_line(row, chat.runtime.tasks.status(row), now=now, width=NARROW))


async def _kill(chat: Conversation, rest: str) -> None:
    if not rest:
        raise Invalid("task_missing", "Say which: /kill ID. /tasks shows them.")
    row = await find_task(chat.runtime, rest, within=chat.session.key)
    killed = await chat.runtime.tasks.kill(chat.session.key, row.task_id)
    chat.say("note", f"· Killed task {row.task_id}; ended: {processes(killed.report.killed) or 'nothing'}.")
    if killed.report.escaped:
        chat.say("bad", f"✗ Not everything ended. Still running: {processes(killed.report.escaped)}.")


async def _queue(chat: Conversation, rest: str) -> None:
    waiting = await chat.session.queue()
    if not waiting:
        chat.say("note", "· Nothing is queued.")
    for number, item in enumerate(waiting, 1):
        chat.say("note", f"  {number}. {one_line(getattr(item.item, 'text', ''))}")


async def _sessions(chat: Conversation, rest: str) -> None:
    if rest:
        await chat.open(await find_session(chat.runtime, rest))
        return
    for row in await chat.runtime.sessions(limit=LISTED):
        chat.say("note", session_line(row))


async def _new(chat: Conversation, rest: str) -> None:
    await chat.open(None)


async def _title(chat: Conversation, rest: str) -> None:
    if not rest:
        raise Invalid("title_empty", "Give the title after the command: /title The new title.")
    await chat.runtime.operations.rename(chat.session.key, rest)
    chat.say("note", f"· The title is now “{one_line(rest)}”.")


async def _model(chat: Conversation, rest: str) -> None:
    if not rest:
        chat.say("note", f"· The model is {chat.watched.model or chat.runtime.config.model}.")
        return
    from holdfast.models.catalogue import open_model  # deferred: HTTP takes a while to import

    key = chat.runtime.config.model_api_key
    tried = open_model(
        rest,
        base_url=chat.runtime.config.model_base_url,
        api_key=key.reveal() if key else None,
        environ=os.environ,
    )
    await tried.close()
    await chat.runtime.operations.change_model(chat.session.key, rest)


async def _usage(chat: Conversation, rest: str) -> None:
    entries = await chat.runtime.operations.usage(chat.runtime.owner, chat.session.id)
    chat.say("note", f"· {cost(entries)}")


async def _quit(chat: Conversation, rest: str) -> None:
    chat.leaving.set()


COMMANDS: dict[str, Command] = {
    "/help": _help,
    "/stop": _stop,
    "/background": _background,
    "/tasks": _tasks,
    "/kill": _kill,
    "/queue": _queue,
    "/sessions": _sessions,
    "/new": _new,
    "/title": _title,
    "/model": _model,
    "/usage": _usage,
    "/quit": _quit,
}
