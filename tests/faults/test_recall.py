"""What a person said is in the context of the next model call, or a summary covers it and `recall` finds it, word for
word: after any number of compactions and kills, on both databases."""

from pathlib import Path

import pytest

from holdfast.events.compaction import CompactionEnded
from holdfast.events.context import SystemText, UserText
from holdfast.events.ids import Position
from holdfast.events.message import UserMessage
from holdfast.events.tool import ToolCompleted, ToolStarted
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from holdfast.server.embedded.session import Session
from holdfast.session.prompt import RECALL
from tests.faults.processes import child_on
from tests.faults.test_compaction import Recorder
from tests.faults.world import bodies_of, log_of, note_beside, runtime_on

pytestmark = pytest.mark.anyio

WINDOW = 6_000
SENTENCES = 60
ASKED_AT_ONCE = 10


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "holdfast.db"
    if request.param == "postgresql":
        note_beside(path).write_text(request.getfixturevalue("postgres_url"))
    return path


def planted(number: int) -> str:
    return f"Planted sentence {number}: lantern{number:02} on the stair is {number * 7} years old."


def words(number: int) -> str:
    return f"{planted(number)} {'Please note it. ' * 40}"


def script() -> Script:
    """A model that is asked to look for some of the sentences, and calls `recall` for each of them."""
    looks = tuple(
        Rule(
            (
                Reply(tool_calls=tuple(_look(number) for number in range(first, first + ASKED_AT_ONCE))),
                Reply(text="Found them."),
            ),
            f"Look from {first}.",
        )
        for first in range(0, SENTENCES, ASKED_AT_ONCE)
    )
    return Script((*looks, Rule((Reply(text="So be it. " * 80),))), window=WINDOW)


def _look(number: int) -> ScriptedCall:
    return ScriptedCall(RECALL, {"query": f"lantern{number:02} stair"})


async def found_or_present(session: Session, model: Recorder, count: int) -> int:
    """Check each sentence. Returns how many of them had left the context."""
    await session.run("What is next?")
    context = "\n".join(message.text for message in model.asked[-1].messages if isinstance(message, UserText))
    covered = max(body.up_to for body in await bodies_of(session, CompactionEnded) if body.success)
    await look_for_all(session)
    results = await looked_up(session)
    positions = await positions_of_messages(session)
    left = 0
    for number in range(count):
        if planted(number) in context:
            continue
        left += 1
        assert positions[words(number)] <= covered
        assert any(planted(number) in result for result in results[number]), number
    return left


async def look_for_all(session: Session) -> None:
    for first in range(0, SENTENCES, ASKED_AT_ONCE):
        assert (await session.run(f"Look from {first}.")).text == "Found them."


async def looked_up(session: Session) -> dict[int, list[str]]:
    """The results of recall, in the order of the log, by the sentence that was looked for."""
    calls = {body.tool_call_id: body.arguments for body in await bodies_of(session, ToolStarted)}
    found: dict[int, list[str]] = {number: [] for number in range(SENTENCES)}
    for body in await bodies_of(session, ToolCompleted):
        number = next(number for number in found if f"lantern{number:02}" in calls[body.tool_call_id])
        found[number].append(body.content)
    return found


async def positions_of_messages(session: Session) -> dict[str, Position]:
    log = await log_of(session)
    return {event.body.content: event.position for event in log if isinstance(event.body, UserMessage)}


async def test_every_sentence_of_a_person_is_in_the_context_or_recallable(database: Path) -> None:
    model = Recorder(script())
    async with runtime_on(database, model) as runtime:
        session = await runtime.session("long")
        for number in range(SENTENCES):
            await session.run(words(number))
        assert len([body for body in await bodies_of(session, CompactionEnded) if body.success]) >= 3
        assert await found_or_present(session, model, SENTENCES) > SENTENCES // 2


async def test_recall_is_offered_from_the_first_compaction_on_whatever_tools_were_chosen(database: Path) -> None:
    model = Recorder(script())
    async with runtime_on(database, model) as runtime:
        session = await runtime.session("long", tools=("view",))
        for number in range(20):
            await session.run(words(number))
        (first, *_) = [event for event in await log_of(session) if isinstance(event.body, CompactionEnded)]
        before = [place for place in (await positions_of_messages(session)).values() if place < first.position]
    offered = [[tool.name for tool in request.tools] for request in model.asked]
    assert offered[: len(before) - 1] == [["view"]] * (len(before) - 1)
    assert offered[-1] == ["view", RECALL]
    systems = {request.messages[0].text for request in model.asked if isinstance(request.messages[0], SystemText)}
    assert len(systems) == 1


async def test_after_a_kill_every_sentence_is_still_in_the_context_or_recallable(database: Path) -> None:
    count = 24
    async with child_on(database, script=script()) as child:
        await child.ask("create", session="long", tools=["view"])
        for number in range(count):
            sent = await child.ask("send", session="long", text=words(number))
            if number < count - 1:
                await child.ask("result", session="long", message_id=sent["message_id"])
        await child.kill()
    model = Recorder(script())
    async with runtime_on(database, model) as runtime:
        assert await found_or_present(runtime.open("long"), model, count) > 0


async def test_neither_what_was_rewound_nor_another_session_is_recalled(database: Path) -> None:
    model = Recorder(script())
    async with runtime_on(database, model) as runtime:
        session, other = await runtime.session("long"), await runtime.session("other")
        await other.run(words(1))
        for number in range(10, 30):
            await session.run(words(number))
        undone = (await positions_of_messages(session))[words(29)]
        await session.run("Look from 20.")
        await runtime.operations.rewind(session.key, Position(undone - 2))  # Before its turn started.
        await session.run("Look from 0.")
        await session.run("Look from 20.")
        results = await looked_up(session)
    assert not any("Planted" in result for number in range(10) for result in results[number])
    for number in range(20, 30):
        present = [planted(number) in result for result in results[number]]
        assert (present[0], present[-1]) == (True, number != 29)
