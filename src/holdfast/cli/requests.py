"""`holdfast requests`, `approve`, `deny` and `answer`: what waits for somebody, answered from any terminal."""

import asyncio
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.cli import request_lines
from holdfast.cli.activity import SessionActivity
from holdfast.cli.answers import question_answer
from holdfast.cli.errors import Refusal
from holdfast.cli.escapes import visible
from holdfast.cli.hints import Hints
from holdfast.cli.home import Home
from holdfast.cli.lookup import (
    RequestDetail,
    WaitingRequest,
    find_request,
    find_session,
    request_details,
    waiting_requests,
)
from holdfast.cli.pager import page
from holdfast.cli.request_lines import short
from holdfast.cli.screen import wants_color
from holdfast.cli.session_lines import when
from holdfast.cli.target import Target, open_home
from holdfast.cli.transcript import Piece, Transcript, one_line, styled
from holdfast.events.event import Event
from holdfast.events.request import (
    Decision,
    ExternalToolRequested,
    PermissionCompleted,
    PermissionRequested,
    UserInputCompleted,
    UserInputRequested,
)
from holdfast.session.state import Phase

TAKEN_UP_SECONDS: Final = 1.5
"""A process that works on the database takes an answer up within this time."""

AnswerSender = Callable[[Home, WaitingRequest], Awaitable[None]]

_HOW: Final = {"permission": "approve", "question": "answer", "client_tool": "(a client answers it)"}


class ListedRequest(NamedTuple):
    """A request that waits, and all of what it asks; None: it was closed while it was looked up."""

    waiting: WaitingRequest
    call: RequestDetail | None


async def list_requests(target: Target, session: str | None, *, as_json: bool) -> None:
    """Everything that is asked, whole: nobody can decide on a part of it."""
    async with open_home(target) as home:
        found = await waiting_requests(home)
        if session is not None:
            wanted = (await find_session(home, session)).id
            found = [waiting for waiting in found if waiting.session.id == wanted]
        calls = {waiting.session.id: await request_details(home, waiting.session.id) for waiting in found}
    listed = [ListedRequest(waiting, calls[waiting.session.id].get(waiting.request.id)) for waiting in found]
    if as_json:
        for one in listed:
            print(msgspec.json.encode(_request_json(one)).decode())
        return
    text = "\n".join(line for one in listed for line in _request_lines(one)) or "Nothing waits for an answer."
    await _show_whole(text)


async def _show_whole(text: str) -> None:
    """In a pager where the terminal has no room for it."""
    width, rows = shutil.get_terminal_size()
    needed = sum(max(1, -(-len(line) // width)) for line in text.split("\n"))
    if not (sys.stdout.isatty() and needed >= rows and await page(f"{text}\n")):
        print(text)


def _request_lines(listed: ListedRequest) -> list[str]:
    asking, request = listed.waiting
    about = f"{short(request.id)}  {when(request.opened_at)}  session {short(asking.id)}"
    start = f"{about}  {request.kind}  [{_HOW[request.kind]}]"
    if listed.call is None:
        return [start, f"  {visible(request.title)}"]
    return [start, *_whole(listed.call)]


def _whole(call: RequestDetail) -> list[str]:
    return [request_lines.first_line(call.asked), *request_lines.lines(call.asked, call.arguments)]


def _request_json(listed: ListedRequest) -> dict[str, Any]:
    asking, request = listed.waiting
    told: dict[str, Any] = {
        "request_id": request.id,
        "session_id": asking.id,
        "kind": request.kind,
        "title": request.title,
        "opened_at": request.opened_at,
        "turn_id": request.turn_id,
        "tool_call_id": request.tool_call_id,
    }
    match listed.call:
        case RequestDetail(PermissionRequested() as asked, arguments):
            whole = {"permission": asked.kind, "subject": asked.subject, "rule": asked.rule, "shown": asked.details}
            return {**told, "tool_name": asked.tool_name, "arguments": arguments, **whole}
        case RequestDetail(ExternalToolRequested() as asked, _):
            return {**told, "tool_name": asked.tool_name, "arguments": asked.arguments}
        case RequestDetail(UserInputRequested() as asked, _):
            choices = {"choices": asked.choices, "allow_freeform": asked.allow_freeform}
            return {**told, "question": asked.question, **choices}
        case _:
            return told


def approval(*, for_session: bool) -> AnswerSender:
    async def approve(home: Home, waiting: WaitingRequest) -> None:
        decision: Decision = "approved-for-session" if for_session else "approved"
        await home.decide(waiting.session.id, waiting.request.id, decision, answered_by="holdfast approve")

    return approve


def denial(reason: str) -> AnswerSender:
    async def deny(home: Home, waiting: WaitingRequest) -> None:
        await home.decide(
            waiting.session.id,
            waiting.request.id,
            "denied-interactively-by-user",
            feedback=reason,
            answered_by="holdfast deny",
        )

    return deny


def reply(text: str) -> AnswerSender:
    async def answer(home: Home, waiting: WaitingRequest) -> None:
        answer, was_freeform = _understood(text, await _question(home, waiting))
        await home.answer(
            waiting.session.id, waiting.request.id, answer, was_freeform=was_freeform, answered_by="holdfast answer"
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


async def _question(home: Home, waiting: WaitingRequest) -> UserInputRequested | None:
    call = (await request_details(home, waiting.session.id)).get(waiting.request.id)
    return call.asked if call is not None and isinstance(call.asked, UserInputRequested) else None


async def give_answer(target: Target, wanted: str, answer: AnswerSender, *, work: bool) -> None:
    """Answer a request, durable on return. With `work`, go on with its session here until nothing is left to do."""
    async with open_home(target) as home:
        waiting = await find_request(home, wanted)
        call = (await request_details(home, waiting.session.id)).get(waiting.request.id)
        print("\n".join(_whole(call)) if call else visible(waiting.request.title), flush=True)
        await answer(home, waiting)
        print(f"Answered: {waiting.request.kind} {one_line(waiting.request.title)}", flush=True)
        if not work:
            await _say_who_goes_on(home, waiting, target.hints)
    if work:
        await _work_until_settled(target, waiting)


async def _say_who_goes_on(home: Home, waiting: WaitingRequest, hints: Hints) -> None:
    if home.goes_on:
        print("The server goes on with the session.")
        return
    deadline = time.monotonic() + TAKEN_UP_SECONDS
    while time.monotonic() < deadline:
        if await _is_taken_up(home, waiting):
            print("Another process goes on with the session.")
            return
        await asyncio.sleep(0.05)
    back = hints.command("chat", "--session", short(waiting.session.id))
    print(f"Nothing runs on this database now. The session goes on when something opens it: {back}")


async def _is_taken_up(home: Home, waiting: WaitingRequest) -> bool:
    """Whether somebody has taken the answer into the log."""
    closed: set[str] = set()
    async for reading in home.read(waiting.session.id, waiting.session.head).until_now():
        match reading:
            case Event(body=PermissionCompleted(request_id=found) | UserInputCompleted(request_id=found)):
                closed.add(found)
            case _:
                pass
    return waiting.request.id in closed


async def _work_until_settled(target: Target, waiting: WaitingRequest) -> None:
    color = wants_color(is_terminal=sys.stdout.isatty())
    transcript, activity, start = Transcript(hints=target.hints), SessionActivity(), waiting.session.head
    async with (
        open_home(target, work=True, grace_seconds=0.5) as home,
        aclosing(home.read(waiting.session.id).follow()) as readings,
    ):
        async for reading in readings:
            pieces = transcript.take(reading)
            if isinstance(reading, Event):
                activity.take(reading)
            is_new = activity.position > start
            if is_new or (activity.position == start and not isinstance(reading, Event)):
                _show(pieces, color=color)
            rests = is_new and activity.phase in (Phase.IDLE, Phase.WAITING)
            if rests and await home.is_settled(waiting.session.id, activity.position):
                break
    for task_id in activity.running_tasks:
        follow = target.hints.command("tasks", "tail", task_id)
        _show(transcript.say("note", f"· Task {task_id} runs on: {follow}"), color=color)


def _show(pieces: list[Piece], *, color: bool) -> None:
    sys.stdout.write("".join(styled(piece, color=color) for piece in pieces))
    sys.stdout.flush()
