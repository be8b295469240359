"""A whole runtime in a process of its own, driven over a pipe, that can be killed at any moment.

It is forked from a server that has everything imported already, so that starting it costs little.
"""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from holdfast.app import Runtime
from holdfast.config import load
from holdfast.events.ids import Key, MessageId, Position, RequestId, SessionId
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.server.errors import OperationError
from holdfast.tools.tool import Tool, ToolContext, tool

SCRIPT = Script(
    (
        Rule((Reply(tool_calls=(ScriptedCall("mark"),)), Reply(text="Marked.")), when="mark"),
        Rule((Reply(tool_calls=(ScriptedCall("mark_if_approved"),)), Reply(text="{last_tool_result}")), when="permit"),
        Rule((Reply(tool_calls=(ScriptedCall("ask_user", {"question": "?"}),)), Reply(text="I see.")), when="ask"),
        Rule((Reply(text="a long story " * 8, chunk_delay_ms=2),), when="long"),
        Rule((Reply(text="Yes."),)),
    )
)
WORDS = ("mark", "permit", "ask", "long", "say")

SETTINGS: dict[str, object] = {
    "linger_seconds": 0.01,
    "claim_every_seconds": 0.1,
    # Its owner is one of many: a single turn runs at a time, and a single one waits.
    "auth": "keys",
    "max_running_turns_per_owner": 1,
    "max_turns_in_flight_per_owner": 2,
}


SHORT_LEASE: dict[str, object] = {"lease_ttl_seconds": 1.5, "renew_every_seconds": 0.2, "lease_margin_seconds": 0.3}
"""For a database where a death shows only when the lease is over."""


def tools(marks: Path) -> list[Tool]:
    def mark(context: ToolContext) -> str:
        with marks.open("a") as file:
            file.write(f"{context.session_id} {context.key}\n")
        return "marked"

    return [tool(permission="allow")(mark), tool(name="mark_if_approved")(mark)]


class Verbs:
    """The commands that come through the pipe."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._operations = runtime.operations

    def _key(self, session: str) -> Key:
        return Key(self._runtime.owner, SessionId(session))

    async def create(self, session: str) -> str:
        return (await self._runtime.session(session)).id

    async def send(self, session: str, message_id: str, text: str, delivery: Any) -> Any:
        return await self._operations.send(
            self._key(session), text, message_id=MessageId(message_id), delivery=delivery
        )

    async def stop(self, session: str, stop_id: str, keep_queued: bool) -> Any:
        return await self._operations.stop(self._key(session), stop_id=stop_id, keep_queued=keep_queued)

    async def requests(self, session: str) -> Any:
        return await self._operations.requests(self._key(session))

    async def permit(self, session: str, request_id: str, decision: Any, answer_id: str) -> Any:
        return await self._operations.decide_permission(
            self._key(session), RequestId(request_id), decision, answer_id=answer_id
        )

    async def answer(self, session: str, request_id: str, text: str, answer_id: str) -> Any:
        return await self._operations.answer_question(
            self._key(session), RequestId(request_id), text, answer_id=answer_id
        )

    async def queue(self, session: str) -> Any:
        return await self._operations.queue(self._key(session))

    async def edit(self, session: str, message_id: str, text: str) -> None:
        await self._operations.edit_queued(self._key(session), MessageId(message_id), text)

    async def remove(self, session: str, message_id: str) -> None:
        await self._operations.remove_queued(self._key(session), MessageId(message_id))

    async def reorder(self, session: str, message_ids: list[str]) -> None:
        await self._operations.reorder_queue(self._key(session), [MessageId(found) for found in message_ids])

    async def delete(self, session: str) -> None:
        await self._operations.delete(self._key(session))

    async def row(self, session: str) -> Any:
        return await self._operations.session(self._key(session))

    async def receipt(self, session: str, message_id: str) -> Any:
        return await self._operations.receipt(self._key(session), MessageId(message_id))

    async def log(self, session: str, after: int) -> Any:
        return await self._operations.store.events_after(self._key(session), Position(after), limit=10_000)


async def serve(pipe: Connection, database: str, marks: Path) -> None:
    lease = SHORT_LEASE if database.startswith("postgresql") else {}
    config = load({"database": database, "data_dir": marks.parent, **SETTINGS, **lease}, {})
    loop = asyncio.get_running_loop()
    async with Runtime(config=config, model=ScriptedModel(SCRIPT), tools=tools(marks)) as runtime:
        verbs = Verbs(runtime)
        tasks: set[asyncio.Task[None]] = set()

        def hear() -> None:
            while pipe.poll():
                name, given = pipe.recv()
                task = loop.create_task(respond(pipe, getattr(verbs, name), given))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        loop.add_reader(pipe.fileno(), hear)
        pipe.send("ready")
        await asyncio.Event().wait()


async def respond(pipe: Connection, verb: Callable[..., Awaitable[Any]], given: tuple[Any, ...]) -> None:
    try:
        pipe.send((await verb(*given), None))
    except OperationError as error:
        pipe.send((None, error.code))


def live(pipe: Connection, database: str, marks: Path) -> None:
    os.environ.clear()
    asyncio.run(serve(pipe, database, marks))


class Refusal(Exception):
    """An operation said no."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Victim:
    """The other end of the pipe."""

    def __init__(self, database: str, marks: Path) -> None:
        """`database` is a URL; tools leave their marks in the other."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.machine.victim"])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=live, args=(theirs, database, marks), daemon=True)
        self._process.start()
        theirs.close()
        assert self._receive() == "ready"

    def ask(self, verb: str, *given: Any) -> Any:
        """Do it and wait for the answer; raises `Refusal`."""
        result, refused = self.attempt(verb, *given)
        if refused is not None:
            raise Refusal(refused)
        return result

    def attempt(self, verb: str, *given: Any) -> tuple[Any, str | None]:
        """Do it if it may be done: what came of it, or the code that it was refused with."""
        self._pipe.send((verb, given))
        result, refused = self._receive()
        return result, refused

    def ask_and_die(self, verb: str, *given: Any) -> None:
        """Hand it in and kill the process: whether it was done, nobody knows."""
        self._pipe.send((verb, given))
        self.kill()

    def kill(self) -> None:
        pid = self._process.pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        self._process.join()
        self._pipe.close()

    def _receive(self) -> Any:
        assert self._pipe.poll(30), "the runtime does not answer"
        return self._pipe.recv()
