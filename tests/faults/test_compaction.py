"""A session that reaches the window of its model: the turn goes on, with a summary or without, and nothing is lost."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from holdfast.events.compaction import CompactionEnded, CompactionStarted
from holdfast.events.context import UserText
from holdfast.events.message import CallFailed
from holdfast.models.info import UNKNOWN, ModelInfo
from holdfast.models.model import Chunk, ModelRequest, TextDelta
from holdfast.models.scripted import Failure, Reply, Rule, Script, ScriptedModel
from holdfast.models.summary_request import asks_for_summary
from holdfast.turns import summary
from tests.faults.world import bodies_of, endings_of, runtime_on

pytestmark = pytest.mark.anyio

WINDOW = 6_000
"""A small window, in tokens: some twelve of the turns below."""

TURNS = 40


class Recorder(ScriptedModel):
    """A scripted model that keeps the requests it got."""

    def __init__(self, script: Script, *, tells_window: bool = True) -> None:
        super().__init__(script)
        self.asked: list[ModelRequest] = []
        self.summarised: list[ModelRequest] = []
        self.tells_window = tells_window

    @property
    def info(self) -> ModelInfo:
        return super().info if self.tells_window else UNKNOWN

    def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        (self.summarised if asks_for_summary(request.messages) else self.asked).append(request)
        return super().stream(request)


def long_talk(*, summary: Reply | None = None, tells_window: bool = True) -> Recorder:
    script = Script((Rule((Reply(text="So be it. " * 80),)),), window=WINDOW, summary=summary)
    return Recorder(script, tells_window=tells_window)


def words(number: int) -> str:
    return f"Planted sentence {number}: the lamp on the stair is {number * 7} years old. " + "Please note it. " * 40


async def test_a_session_longer_than_its_window_goes_on_with_summaries(database: Path) -> None:
    model = long_talk()
    async with runtime_on(database, model) as runtime:
        session = await runtime.session("long")
        for number in range(TURNS):
            assert (await session.run(words(number))).text.startswith("So be it.")
        ended = await bodies_of(session, CompactionEnded)
        assert len(ended) >= 3
        assert {body.method for body in ended if body.success} == {"summary"}
        assert [body.error_code for body in await bodies_of(session, CallFailed)] == []
        assert await endings_of(session) == ["completed"] * TURNS
    *_, last = (part.text for part in model.summarised[-1].messages if isinstance(part, UserText))
    assert last.startswith("Summary of what came before:\n"), "the whole log has no room"
    assert "User: Planted sentence" in last, "what has room is summarised from the log"
    for number, request in enumerate(model.asked):
        assert isinstance(request.messages[-1], UserText)
        assert f"Planted sentence {number}:" in request.messages[-1].text


async def test_a_provider_that_refuses_a_call_as_too_long_costs_one_compaction_and_no_turn(database: Path) -> None:
    """Nothing is known of the window but what the provider says when it refuses."""
    model = long_talk(tells_window=False)
    async with runtime_on(database, model) as runtime:
        session = await runtime.session("long")
        for number in range(20):
            assert (await session.run(words(number))).text.startswith("So be it.")
        refused = await bodies_of(session, CallFailed)
        assert [body.error_code for body in refused] == ["model_context_exceeded"]
        assert refused[0].window == WINDOW
        started = await bodies_of(session, CompactionStarted)
        assert started[0].trigger == "too_long"
        assert "too_long" not in {body.trigger for body in started[1:]}
        ended = await bodies_of(session, CompactionEnded)
        assert {body.method for body in ended} == {"summary"}, "a summary keeps to the window that the provider named"
        assert await endings_of(session) == ["completed"] * 20


@pytest.mark.parametrize(
    ("summary", "error"),
    [
        (Reply(text=""), "empty"),
        (Reply(fail=Failure(kind="refused")), "failed"),
        (Reply(text="x " * 9_000), "too_long"),
    ],
)
async def test_a_context_that_can_not_be_summarised_is_cut_and_the_turn_goes_on(
    database: Path, summary: Reply, error: str
) -> None:
    model = long_talk(summary=summary)
    async with runtime_on(database, model) as runtime:
        session = await runtime.session("long")
        for number in range(20):
            assert (await session.run(words(number))).text.startswith("So be it.")
        ended = await bodies_of(session, CompactionEnded)
        assert {body.method for body in ended if body.success} == {"cut"}
        assert error in {body.error for body in ended}
        assert await endings_of(session) == ["completed"] * 20
    for number, request in enumerate(model.asked):
        assert f"Planted sentence {number}:" in request.messages[-1].text


class Silent(Recorder):
    """A model that never says a word of a summary, or never ends one."""

    def __init__(self, script: Script, *, endless: bool = False) -> None:
        super().__init__(script)
        self.endless = endless
        self.summaries = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        if asks_for_summary(request.messages):
            self.summaries += 1
            while True:
                if self.endless:
                    yield [TextDelta("and so on " * 100)]
                    await asyncio.sleep(0)
                else:
                    await asyncio.Event().wait()
        async for chunks in super().stream(request):
            yield chunks


@pytest.mark.parametrize("endless", [False, True])
async def test_a_summary_that_does_not_end_is_given_up_once_for_all(
    database: Path, monkeypatch: pytest.MonkeyPatch, endless: bool
) -> None:
    """All tries at one summary share one time: at the wall the turn waits for them."""
    model = Silent(Script((Rule((Reply(text="So be it. " * 80),)),), window=WINDOW), endless=endless)
    monkeypatch.setattr(summary, "SUMMARY_SECONDS", 60.0 if endless else 0.05)
    async with runtime_on(database, model) as runtime:
        session = await runtime.session("long")
        number = 0
        while not (ended := await bodies_of(session, CompactionEnded)):
            assert (await session.run(words(number))).text.startswith("So be it.")
            number += 1
        assert (await session.run(words(number))).text.startswith("So be it.")
        assert (model.summaries, ended[0].error) == (1, "too_long" if endless else "failed")
