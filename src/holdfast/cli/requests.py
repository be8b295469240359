"""`holdfast requests`, `approve`, `deny` and `answer`: open requests, answered from any terminal."""

import asyncio
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import msgspec

from holdfast.cli import request_lines
from holdfast.cli.activity import SessionActivity
from holdfast.cli.answers import decide, question_answer
from holdfast.cli.errors import Refusal
from holdfast.cli.escapes import visible
from holdfast.cli.hints import Hints
from holdfast.cli.home import is_settled, open_as, runs_elsewhere
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
from holdfast.cli.transcript import Transcript, one_line, print_pieces
from holdfast.events.event import Event
from holdfast.events.request import (
    Decision,
    PermissionCompleted,
    PermissionRequested,
    UserInputCompleted,
    UserInputRequested,
)
from holdfast.protocol.home import Home
from holdfast.session.state import Phase

PROMOTION_SECONDS: Final = 1.5
"""A process that runs sessions of the database promotes an answer within this time."""

AnswerSender = Callable[[Home, WaitingRequest], Awaitable[None]]

_ANSWERED_WITH: Final = {"permission": "approve", "question": "answer", "client_tool": "(a client answers it)"}


async def list_requests(target: Target, session: str | None, *, as_json: bool) -> None:
    """Print the open requests in full, because a decision needs all of a request."""
    async with open_home(target) as home:
        found = await waiting_requests(home)
        if session is not None:
            wanted = (await find_session(home, session)).id
            found = [waiting for waiting in found if waiting.session.id == wanted]
        details = {waiting.session.id: await request_details(home, waiting.session.id) for waiting in found}
    # A request that was closed during the lookup has no detail.
    listed = [(waiting, details[waiting.session.id].get(waiting.request.id)) for waiting in found]
    if as_json:
        for waiting, detail in listed:
            print(msgspec.json.encode(_request_json(waiting, detail)).decode())
        return
    lines = [line for waiting, detail in listed for line in _request_lines(waiting, detail)]
    await _show_in_full("\n".join(lines) or "Nothing waits for an answer.")


async def _show_in_full(text: str) -> None:
    """Print a text, or open it in a pager if the terminal has no room for it."""
    width, rows = shutil.get_terminal_size()
    needed = sum(max(1, -(-len(line) // width)) for line in text.split("\n"))
    if not (sys.stdout.isatty() and needed >= rows and await page(f"{text}\n")):
        print(text)


def _request_lines(waiting: WaitingRequest, detail: RequestDetail | None) -> list[str]:
    session, request = waiting
    about = f"{short(request.id)}  {when(request.opened_at)}  session {short(session.id)}"
    start = f"{about}  {request.kind}  [{_ANSWERED_WITH[request.kind]}]"
    return [start, *(_detail_lines(detail) if detail else [f"  {visible(request.title)}"])]


def _detail_lines(detail: RequestDetail) -> list[str]:
    return [request_lines.first_line(detail.opened), *request_lines.lines(detail.opened, detail.arguments)]


def _request_json(waiting: WaitingRequest, detail: RequestDetail | None) -> dict[str, Any]:
    """The request as HTTP serves it, with its session and, for a permission, the arguments of the tool call."""
    request = {**msgspec.structs.asdict(waiting.request), "session_id": waiting.session.id}
    match detail:
        case RequestDetail(PermissionRequested(), arguments):
            return {**request, "arguments": arguments}
        case _:
            return request


def approval(*, for_session: bool) -> AnswerSender:
    return _decision("approved-for-session" if for_session else "approved", answered_by="holdfast approve")


def denial(reason: str) -> AnswerSender:
    return _decision("denied-interactively-by-user", feedback=reason, answered_by="holdfast deny")


def _decision(decision: Decision, *, feedback: str = "", answered_by: str) -> AnswerSender:
    async def send(home: Home, waiting: WaitingRequest) -> None:
        session = open_as(home, waiting.session.id, answered_by)
        await decide(session, waiting.request.id, decision, feedback=feedback)

    return send


def reply(text: str) -> AnswerSender:
    async def send(home: Home, waiting: WaitingRequest) -> None:
        answer, was_freeform = _parsed_answer(text, await _question(home, waiting))
        session = open_as(home, waiting.session.id, "holdfast answer")
        await session.answer(waiting.request.id, answer, was_freeform=was_freeform)

    return send


def _parsed_answer(text: str, question: UserInputRequested | None) -> tuple[str, bool]:
    """The answer, and whether it is free text."""
    if question is None:
        return text, True
    parsed = question_answer(text, question)
    if parsed is None:
        choices = "; ".join(f"{number}. {one_line(choice)}" for number, choice in enumerate(question.choices, 1))
        advice = f"Answer with one of these, or with its number: {choices}" if choices else "The answer can't be empty."
        raise Refusal("answer_invalid", advice)
    return parsed


async def _question(home: Home, waiting: WaitingRequest) -> UserInputRequested | None:
    detail = (await request_details(home, waiting.session.id)).get(waiting.request.id)
    return detail.opened if detail is not None and isinstance(detail.opened, UserInputRequested) else None


async def give_answer(target: Target, wanted: str, send: AnswerSender, *, work: bool) -> None:
    """Answer a request, durable on return. With `work`, run its session here until it is idle or waits."""
    async with open_home(target) as home:
        waiting = await find_request(home, wanted)
        detail = (await request_details(home, waiting.session.id)).get(waiting.request.id)
        print("\n".join(_detail_lines(detail)) if detail else visible(waiting.request.title), flush=True)
        await send(home, waiting)
        print(f"Answered: {waiting.request.kind} {one_line(waiting.request.title)}", flush=True)
        if not work:
            await _print_continuation(home, waiting, target.hints)
    if work:
        await _work_until_settled(target, waiting)


async def _print_continuation(home: Home, waiting: WaitingRequest, hints: Hints) -> None:
    if runs_elsewhere(home):
        print("The server continues the session.")
        return
    deadline = time.monotonic() + PROMOTION_SECONDS
    while time.monotonic() < deadline:
        if await _is_promoted(home, waiting):
            print("Another process continues the session.")
            return
        await asyncio.sleep(0.05)
    back = hints.command("chat", "--session", short(waiting.session.id))
    print(f"No process runs sessions of this database now. To continue this session: {back}")


async def _is_promoted(home: Home, waiting: WaitingRequest) -> bool:
    """Whether the answer is in the log."""
    closed: set[str] = set()
    async for reading in home.open(waiting.session.id).events(str(waiting.session.head), follow=False):
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
        aclosing(home.open(waiting.session.id).events()) as readings,
    ):
        async for reading in readings:
            pieces = transcript.take(reading)
            if isinstance(reading, Event):
                activity.take(reading)
            is_new = activity.position > start
            if is_new or (activity.position == start and not isinstance(reading, Event)):
                print_pieces(pieces, color=color)
            rests = is_new and activity.phase in (Phase.IDLE, Phase.WAITING)
            if rests and await is_settled(home.open(waiting.session.id), activity.position):
                break
    for task_id in activity.running_tasks:
        follow = target.hints.command("tasks", "tail", task_id)
        print_pieces(transcript.say("note", f"· Task {task_id} runs on: {follow}"), color=color)
