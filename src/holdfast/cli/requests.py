"""`holdfast requests`, `approve`, `deny` and `answer`: what waits for somebody, answered from any terminal."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.app import Runtime
from holdfast.cli.answers import question_answer
from holdfast.cli.errors import Refusal
from holdfast.cli.finding import Waiting, find_request, find_session, waiting_requests
from holdfast.cli.hints import Hints
from holdfast.cli.opening import opened
from holdfast.cli.screen import wants_color
from holdfast.cli.session_lines import when
from holdfast.cli.terminal import Piece, Transcript, one_line, short, styled
from holdfast.cli.watching import Watched, is_settled
from holdfast.config import Config
from holdfast.events.event import Event
from holdfast.events.request import Decision, UserInputRequested
from holdfast.session.state import Phase
from holdfast.store.store import Cursor

TAKEN_UP_SECONDS: Final = 1.5
"""A process that works on the database takes an answer up within this time."""

Answering = Callable[[Runtime, Waiting], Awaitable[object]]

_HOW: Final = {"permission": "approve", "question": "answer", "client_tool": "(a client answers it)"}


async def list_requests(config: Config, session: str | None) -> None:
    async with opened(config, work=False) as runtime:
        found = await waiting_requests(runtime)
        if session is not None:
            key = (await find_session(runtime, session)).key
            found = [waiting for waiting in found if waiting.row.key == key]
    for row, request in found:
        start = f"{short(request.request_id)}  {when(request.opened_at)}  session {short(row.key.session)}"
        print(f"{start}  {request.kind}: {one_line(request.title, 120)}  [{_HOW[request.kind]}]")
    if not found:
        print("Nothing waits for an answer.")


def approving(*, for_session: bool) -> Answering:
    async def approve(runtime: Runtime, waiting: Waiting) -> object:
        decision: Decision = "approved-for-session" if for_session else "approved"
        return await runtime.operations.decide_permission(
            waiting.row.key, waiting.request.request_id, decision, answered_by="holdfast approve"
        )

    return approve


def denying(reason: str) -> Answering:
    async def deny(runtime: Runtime, waiting: Waiting) -> object:
        return await runtime.operations.decide_permission(
            waiting.row.key,
            waiting.request.request_id,
            "denied-interactively-by-user",
            feedback=reason,
            answered_by="holdfast deny",
        )

    return deny


def answering(text: str) -> Answering:
    async def answer(runtime: Runtime, waiting: Waiting) -> object:
        key, request_id = waiting.row.key, waiting.request.request_id
        answer, was_freeform = _understood(text, await _question(runtime, waiting))
        return await runtime.operations.answer_question(
            key, request_id, answer, was_freeform=was_freeform, answered_by="holdfast answer"
        )

    return answer


def _understood(text: str, asked: UserInputRequested | None) -> tuple[str, bool]:
    if asked is None:
        return text, True
    understood = question_answer(text, asked)
    if understood is None:
        choices = "; ".join(f"{number}. {one_line(choice)}" for number, choice in enumerate(asked.choices, 1))
        raise Refusal("answer_invalid", f"The question has these answers: {choices or '(any text)'}")
    return understood


async def _question(runtime: Runtime, waiting: Waiting) -> UserInputRequested | None:
    async for reading in runtime.operations.read(waiting.row.key).until_now():
        match reading:
            case Event(body=UserInputRequested() as asked) if asked.request_id == waiting.request.request_id:
                return asked
            case _:
                pass
    return None


async def give_answer(config: Config, wanted: str, answer: Answering, *, work: bool, hints: Hints) -> None:
    """Answer a request, durable on return. With `work`, go on with its session here until nothing is left to do."""
    async with opened(config, work=False) as runtime:
        waiting = await find_request(runtime, wanted)
        start = Cursor(waiting.row.head)
        await answer(runtime, waiting)
        print(f"Answered: {waiting.request.kind} {one_line(waiting.request.title)}", flush=True)
        if not work:
            await _say_who_goes_on(runtime, waiting, hints)
    if work:
        await _work_until_settled(config, waiting, start, hints)


async def _say_who_goes_on(runtime: Runtime, waiting: Waiting, hints: Hints) -> None:
    deadline = time.monotonic() + TAKEN_UP_SECONDS
    while time.monotonic() < deadline:
        if await _is_taken_up(runtime, waiting):
            print("Another process goes on with the session.")
            return
        await asyncio.sleep(0.05)
    back = hints.command("chat", "--session", short(waiting.row.key.session))
    print(f"Nothing runs on this database now. The session goes on when something opens it: {back}")


async def _is_taken_up(runtime: Runtime, waiting: Waiting) -> bool:
    receipt = await runtime.store.receipt(waiting.row.key, f"answer:{waiting.request.request_id}")
    return receipt is not None and receipt.state != "accepted"


async def _work_until_settled(config: Config, waiting: Waiting, start: Cursor, hints: Hints) -> None:
    color = wants_color(is_terminal=sys.stdout.isatty())
    transcript, watched = Transcript(hints=hints), Watched()
    async with opened(config, work=True, grace_seconds=0.5) as runtime:
        async for reading in runtime.operations.read(waiting.row.key).follow():
            pieces = transcript.take(reading)
            if isinstance(reading, Event):
                watched.take(reading)
            is_new = watched.position > start.position
            if is_new or (watched.position == start.position and not isinstance(reading, Event)):
                _show(pieces, color=color)
            if is_new and watched.phase in (Phase.IDLE, Phase.WAITING):
                caught = await runtime.store.catch_up(waiting.row.key, Cursor(watched.position), limit=1)
                if caught is None or (not caught.events and is_settled(caught)):
                    break
    for task_id in watched.running_tasks:
        _show(
            transcript.say("note", f"· Task {task_id} runs on: {hints.command('tasks', 'tail', task_id)}"), color=color
        )


def _show(pieces: list[Piece], *, color: bool) -> None:
    sys.stdout.write("".join(styled(piece, color=color) for piece in pieces))
    sys.stdout.flush()
