"""What a line that begins with a slash does in a chat."""

import os

from holdfast.cli.conversation import Command, Conversation
from holdfast.cli.finding import find_session
from holdfast.cli.session_lines import cost, session_line
from holdfast.cli.terminal import one_line
from holdfast.server.errors import Invalid

LISTED = 10

HELP = """\
/stop            end the running turn (Ctrl-C does the same)
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
    "/queue": _queue,
    "/sessions": _sessions,
    "/new": _new,
    "/title": _title,
    "/model": _model,
    "/usage": _usage,
    "/quit": _quit,
}
