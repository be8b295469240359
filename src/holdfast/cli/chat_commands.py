"""The commands of a chat: lines that begin with a slash."""

from holdfast.cli.context_lines import cancel_line, context_line
from holdfast.cli.conversation import ChatCommand, Conversation
from holdfast.cli.home import change_model, context_of, tasks_of, usage
from holdfast.cli.lookup import find_message, find_session, find_task
from holdfast.cli.session_lines import cost, session_line
from holdfast.cli.sessions import COMPACT_SECONDS
from holdfast.cli.task_lines import heading, processes, task_line
from holdfast.cli.transcript import one_line
from holdfast.server.errors import Conflict, Invalid

LISTED = 10
REFUSAL_SECONDS = 2.0
"""How long `/compact` waits for a refusal."""

CANCEL = "--cancel"

NARROW = 56
"""The width of the list of tasks, two lines for each, so that it fits every terminal."""

HELP = """\
/stop              end the running turn (Ctrl-C does the same)
/show              all of a request of which only the beginning was shown
/background        move the running command to the background (Ctrl-B does the same)
/tasks             the commands of this session that run, or have ended lately
/kill ID           end one of them
/queue             the messages that wait to be read
/sessions [ID]     the latest sessions, or continue one of them
/new               start another session; this one keeps its work
/title TEXT        name this session
/model NAME        use another model from the next step on
/compact [TEXT]    summarise the older part for the model; the text says what to keep
/compact --cancel  give up the summary that is being made
/pin [TEXT]        keep your last message, or the last with this text, word for word
/unpin [TEXT]      let it be summarised again
/usage             the tokens and the cost of this session
/quit              leave; the work is kept (Ctrl-D does the same)
A line typed while the agent works is queued, and read at the next step. Alt-Enter starts a new line."""


async def _help(chat: Conversation, rest: str) -> None:
    chat.say("note", HELP)


async def _stop(chat: Conversation, rest: str) -> None:
    await chat.stop()


async def _show(chat: Conversation, rest: str) -> None:
    await chat.show_request()


async def _background(chat: Conversation, rest: str) -> None:
    waited_for = [task for task in await tasks_of(chat.home, chat.session_id) if task.foreground and task.is_running]
    if not waited_for:
        raise Conflict("no_command_runs", "The turn waits for no command.")
    for task in waited_for:
        await chat.session.to_background(task.id)


async def _tasks(chat: Conversation, rest: str) -> None:
    tasks = await tasks_of(chat.home, chat.session_id)
    if not tasks:
        chat.say("note", "· This session has no tasks.")
        return
    chat.say("note", heading(width=NARROW))
    for task in tasks:
        chat.say("note", task_line(task, width=NARROW))


async def _kill(chat: Conversation, rest: str) -> None:
    if not rest:
        raise Invalid("task_missing", "Name the task: /kill ID. /tasks shows the ids.")
    task = await find_task(chat.home, rest, within=chat.session_id)
    killed = await chat.session.kill_task(task.id)
    chat.say("note", f"· Killed task {task.id}; ended: {processes(killed.killed_processes) or 'nothing'}.")
    if killed.escaped_processes:
        chat.say("bad", f"✗ Not everything ended. Still running: {processes(killed.escaped_processes)}.")


async def _queue(chat: Conversation, rest: str) -> None:
    waiting = await chat.session.queue()
    if not waiting:
        chat.say("note", "· Nothing is queued.")
    for number, message in enumerate(waiting, 1):
        chat.say("note", f"  {number}. {one_line(message.text)}")


async def _sessions(chat: Conversation, rest: str) -> None:
    if rest:
        await chat.open(await find_session(chat.home, rest))
        return
    shown = 0
    async for session in chat.home.sessions():
        chat.say("note", session_line(session))
        shown += 1
        if shown == LISTED:
            return


async def _new(chat: Conversation, rest: str) -> None:
    await chat.open(None)


async def _title(chat: Conversation, rest: str) -> None:
    if not rest:
        raise Invalid("title_empty", "Type the title after the command: /title The new title.")
    await chat.session.rename(rest)
    chat.say("note", f"· The title is now “{one_line(rest)}”.")


async def _model(chat: Conversation, rest: str) -> None:
    if not rest:
        chat.say("note", f"· The model is {chat.activity.model or chat.home.default_model}.")
        return
    await change_model(chat.home, chat.session_id, rest)


async def _compact(chat: Conversation, rest: str) -> None:
    if rest == CANCEL:
        cancelled = await chat.session.cancel_compaction()
        if cancelled.outcome != "cancelled":  # The log shows that.
            chat.say("note", f"· {cancel_line(cancelled)}")
        return
    # The log shows how it ends. A script waits for that; a person may go on typing.
    seconds = REFUSAL_SECONDS if chat.screen.interactive else COMPACT_SECONDS
    await chat.session.compact(instructions=rest, wait_seconds=seconds)


async def _pin(chat: Conversation, rest: str) -> None:
    await chat.session.pin(await find_message(chat.session, rest))


async def _unpin(chat: Conversation, rest: str) -> None:
    await chat.session.unpin(await find_message(chat.session, rest, pinned=True))


async def _usage(chat: Conversation, rest: str) -> None:
    chat.say("note", f"· {cost(await usage(chat.home, chat.session_id))}")
    if line := context_line(await context_of(chat.session)):
        chat.say("note", f"· {line}.")


async def _quit(chat: Conversation, rest: str) -> None:
    chat.leaving.set()


COMMANDS: dict[str, ChatCommand] = {
    "/help": _help,
    "/stop": _stop,
    "/show": _show,
    "/background": _background,
    "/tasks": _tasks,
    "/kill": _kill,
    "/queue": _queue,
    "/sessions": _sessions,
    "/new": _new,
    "/title": _title,
    "/model": _model,
    "/compact": _compact,
    "/pin": _pin,
    "/unpin": _unpin,
    "/usage": _usage,
    "/quit": _quit,
}
