"""What sessions cost that wait for a person: the memory of the process that serves them all, and how soon one of them
goes on when it is answered.

They are written by the store's own verbs, each as a turn leaves it that asked for permission: created, sent to,
claimed, a call made and asked about, released.
"""

import asyncio
import statistics
import time
import uuid

from bench.memory import megabytes
from bench.place import Place
from holdfast.app import Runtime
from holdfast.events import message, request, session, tool, turn
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Owner, Position, RequestId, SessionId, ToolCallId, TurnId
from holdfast.events.inbox import Message
from holdfast.events.tool import ToolAttempted
from holdfast.events.turn import TurnEnded
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel
from holdfast.server.embedded.session import Session
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Claim, Committed, Key, NewSession, Promotion, RequestRow, Unit
from holdfast.tools.tool import tool as make_tool

OWNER = Owner("local")
AT_ONCE = 1_000
TOOLS = ("write_note",)

PREPARE_SECONDS = 600.0
"""No worker is there to renew the leases while the sessions are made; it takes far less than this."""


@make_tool(permission="ask")
def write_note(text: str) -> str:
    """Write a note."""
    return f"Noted: {text}"


async def prepare(place: Place) -> None:
    store = await SqliteStore.open(place.prepared / "waiting.db", node="bench", tools=frozenset(TOOLS))
    try:
        await store.renew(ttl_seconds=PREPARE_SECONDS)
        for first in range(0, place.size.waiting_sessions, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, place.size.waiting_sessions))
            await asyncio.gather(*(_create(store, number) for number in numbers))
            claims = await store.claim(limit=AT_ONCE)
            assert len(claims) == len(numbers)
            await asyncio.gather(*(_ask(store, claim) for claim in claims))
    finally:
        await store.close()


async def measure(place: Place) -> dict[str, float]:
    model = HttpModel(ChatCompletions("bench"), base_url=place.model_url, name="bench")
    count = place.size.answers
    async with (
        model,
        Runtime(
            database=place.prepared / "waiting.db", model=model, tools=(write_note,), built_in_tools=False
        ) as runtime,
    ):
        assert len((await runtime.operations.sessions(runtime.owner)).rows) == min(50, place.size.waiting_sessions)
        assert (await runtime.open(_id(place.size.waiting_sessions - 1)).look()).status == "waiting"
        delays = [await _answer(runtime.open(_id(place.run * count + number))) for number in range(count)]
        return {"waiting_memory": megabytes(), "answer_to_attempt": statistics.median(delays) * 1000}


async def _answer(waiting: Session) -> float:
    """From when the answer was accepted until a reader has the event that comes right before the tool runs."""
    (asked,) = await waiting.requests()
    readings = waiting.events(str((await waiting.look()).head))
    reading = asyncio.ensure_future(anext(readings))
    await waiting.approve(asked.id)
    accepted = time.perf_counter()
    attempted = 0.0
    while True:
        found = await reading
        if isinstance(found, Event) and isinstance(found.body, ToolAttempted):
            attempted = time.perf_counter()
        if isinstance(found, Event) and isinstance(found.body, TurnEnded):
            assert found.body.reason == "completed"
            return attempted - accepted
        reading = asyncio.ensure_future(anext(readings))


async def _create(store: SqliteStore, number: int) -> None:
    key = Key(OWNER, _id(number))
    started = session.SessionStarted(session_id=key.session, producer="bench", start_time=1, tools=TOOLS)
    new = NewSession(tools=TOOLS, created_at=1)
    assert isinstance(await store.commit(Unit(key=key, fence=None, events=_events(started), creates=new)), Committed)
    sent = Message(message_id=MessageId(f"asked-{number}"), text="Write a note, please.")
    await store.put(key, sent, item_key=f"message:asked-{number}", queue_limit=1)


async def _ask(store: SqliteStore, claim: Claim) -> None:
    lease = claim.lease
    turn_id, call_id, asked = TurnId(str(uuid.uuid4())), ToolCallId(str(uuid.uuid4())), RequestId(str(uuid.uuid4()))
    unit = Unit(
        key=lease.key,
        fence=lease.fence,
        events=_events(*_asking_turn(lease.key.session, turn_id, call_id, asked)),
        promotes=(Promotion(1, "idle"),),
        opens=(
            RequestRow(
                request_id=asked,
                kind="permission",
                turn_id=turn_id,
                tool_call_id=call_id,
                title="custom-tool write_note",
                opened_at=1,
            ),
        ),
        turn_id=turn_id,
        status="waiting",
        title="Write a note, please.",
    )
    assert isinstance(await store.commit(unit), Committed)
    assert await store.release(lease, seen_tail=1, how="done")


def _asking_turn(session_id: SessionId, turn_id: TurnId, call_id: ToolCallId, asked: RequestId) -> list[Body]:
    number = session_id.removeprefix("waiting-")
    message_id = MessageId(f"answer-{number}")
    name, arguments = TOOLS[0], '{"text":"hello"}'
    block = message.ToolCallBlock(tool_call_id=call_id, name=name, arguments=arguments)
    return [
        turn.TurnStarted(turn_id=turn_id),
        message.UserMessage(
            message_id=MessageId(f"asked-{number}"), turn_id=turn_id, content="Write a note, please.", delivery="idle"
        ),
        session.TitleChanged(title="Write a note, please."),
        turn.StepStarted(turn_id=turn_id, step=1, message_id=message_id),
        message.AssistantMessage(message_id=message_id, blocks=(block,), model="bench", finish_reason="tool_calls"),
        message.Usage(message_id=message_id, model="bench", input_tokens=10, output_tokens=10),
        tool.ToolStarted(tool_call_id=call_id, tool_name=name, arguments=arguments),
        request.PermissionRequested(
            request_id=asked, tool_call_id=call_id, tool_name=name, kind="custom-tool", subject=name, rule=name
        ),
        turn.TurnWaiting(turn_id=turn_id, reason="requests", request_ids=(asked,)),
    ]


def _id(number: int) -> SessionId:
    return SessionId(f"waiting-{number}")


def _events(*bodies: Body) -> tuple[Event, ...]:
    return tuple(Event(Position(0), EventId(str(uuid.uuid4())), 1, body) for body in bodies)
