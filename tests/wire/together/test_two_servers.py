"""Two servers on one database: whatever one of them runs is sent to, read and stopped at the other as well."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.wire.ai_sdk.harness import Answer, Model, Talk, calls, patience, says
from tests.wire.copilot.harness import Hold, Pipe, is_gone
from tests.wire.together.world import Place

pytestmark = pytest.mark.anyio

_names = itertools.count(1)


class Pair(NamedTuple):
    """One session, at both servers."""

    one: Talk
    other: Talk


class Servers(NamedTuple):
    pair: Callable[[], contextlib.AbstractAsyncContextManager[Pair]]


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory, model: Model) -> AsyncIterator[Servers]:
    place = Place(tmp_path_factory.mktemp("servers"), model, None)
    async with place.serve() as first, place.serve() as second:

        @contextlib.asynccontextmanager
        async def pair() -> AsyncIterator[Pair]:
            name = f"shared-{next(_names)}"
            async with Talk(first, name) as one, Talk(second, name) as other:
                yield Pair(one, other)

        yield Servers(pair)


@pytest.fixture
async def pair(servers: Servers) -> AsyncIterator[Pair]:
    async with servers.pair() as found:
        yield found


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[str], Pipe]]:
    with contextlib.ExitStack() as stack:

        def make(name: str) -> Pipe:
            made = Pipe(tmp_path / name)
            stack.callback(made.close)
            return made

        yield make


async def typed(talk: Talk) -> list[str]:
    return [event["data"]["content"] for event in await talk.events() if event["type"] == "user.message"]


async def test_the_same_message_at_both_at_once_is_one_run_and_ten_equal_streams(pair: Pair, model: Model) -> None:
    model.on("Ten at two doors", says("One answer for both."))
    answers = await asyncio.gather(*(talk.send("Ten at two doors") for talk in pair * 5))
    messages = await asyncio.gather(*(answer.message() for answer in answers))
    assert messages[0]["parts"][1]["text"] == "One answer for both."
    assert [found for found in messages if found != messages[0]] == []
    assert len(model.calls_about("Ten at two doors")) == 1
    assert await typed(pair.one) == await typed(pair.other) == ["Ten at two doors"]


async def left(talk: Talk) -> Any:
    """All that a message could leave."""
    queue = await (await talk.request("GET", f"/v1/sessions/{talk.name}/queue")).json()
    return await talk.events(), queue, await talk.requests()


async def test_a_message_that_one_refuses_leaves_nothing_at_either(pair: Pair, model: Model) -> None:
    model.on("Keep both busy", says("Busy no more."))
    hold = model.hold("Keep both busy", piece=1)
    running = await pair.one.send("Keep both busy")
    await hold.until_reached()
    for number in range(10):
        await (await pair.one.send(f"Wait {number}", f"waits-{number}", delivery="enqueue")).rest()
    before = await left(pair.one)
    refusals = [
        await pair.other.send("One too many", "refused", delivery="enqueue"),
        await pair.other.send("Only if idle", "refused", delivery="reject"),
        await pair.other.send("Other words", "waits-3", delivery="enqueue"),
        await pair.other.send("x" * 64_001, "refused"),
    ]
    assert [answer.status for answer in refusals] == [429, 409, 409, 422]
    assert await left(pair.one) == await left(pair.other) == before
    await stopped(pair.other)
    assert await typed(pair.other) == ["Keep both busy"]
    await running.rest()


class Started(NamedTuple):
    """A turn that one of them runs."""

    answer: Answer
    hold: Hold | None = None
    pid: int | None = None


async def in_a_model_call(pair: Pair, model: Model, pipe: Callable[[str], Pipe]) -> Started:
    model.on("Talk for long", says("One two three."))
    hold = model.hold("Talk for long", piece=1)
    answer = await pair.one.send("Talk for long")
    await answer.until_text("One")
    await hold.until_reached()
    return Started(answer, hold)


async def in_a_tool(pair: Pair, model: Model, pipe: Callable[[str], Pipe]) -> Started:
    begun, never = pipe("begun"), pipe("never")
    command = f"echo $$ > {begun.path}; read line < {never.path}"
    model.on("Run for long", calls("exec", command=command), says("Never said."))
    await (await pair.one.send("Run for long")).rest()
    await pair.one.decide("approve")
    answer = await pair.one.replay()
    return Started(answer, pid=int(await begun.line()))


async def in_a_request(pair: Pair, model: Model, pipe: Callable[[str], Pipe]) -> Started:
    model.on("Ask before", calls("exec", command="echo never"), says("Never said."))
    answer = await pair.one.send("Ask before")
    await answer.rest()
    assert len(await pair.other.requests()) == 1
    return Started(answer)


async def with_a_queue(pair: Pair, model: Model, pipe: Callable[[str], Pipe]) -> Started:
    started = await in_a_model_call(pair, model, pipe)
    await (await pair.other.send("Wait for it", "waits", delivery="enqueue")).rest()
    return started


async def stopped(talk: Talk) -> Any:
    """The result of a stop, repeated under the same id until it is final."""
    path = f"/v1/sessions/{talk.name}/cancel"
    async with patience():
        while (said := await (await talk.request("POST", path, {"stop_id": "stop"})).json())["outcome"] == "stopping":
            pass
    return said


@pytest.mark.parametrize("start", [in_a_model_call, in_a_tool, in_a_request, with_a_queue])
async def test_a_stop_at_one_ends_what_was_started_at_the_other_and_the_next_message_works_at_once(
    pair: Pair, model: Model, pipe: Callable[[str], Pipe], start: Callable[..., Any]
) -> None:
    started: Started = await start(pair, model, pipe)
    said = await stopped(pair.other)
    assert (said["outcome"], said["returned"]) == ("stopped", ["Wait for it"] if start is with_a_queue else [])
    model.on("And now", says("Now it works."))
    after = await (await pair.other.send("And now", "next")).message()
    assert (after["parts"][-1]["text"], after["metadata"]["reason"]) == ("Now it works.", "completed")
    before = (await pair.one.messages())[1]
    assert before["metadata"]["reason"] == "stopped"
    assert await pair.one.requests() == []
    assert (await typed(pair.one))[1:] == ["And now"]
    if start is not in_a_request:
        await started.answer.rest()
        assert started.answer.types[-1] == "abort"
    if started.hold is not None:
        await started.hold.until_left()
    if started.pid is not None:
        assert await asyncio.to_thread(is_gone, started.pid)
