"""Budgets: turns end when there is no money for their next call, answers are as long as it buys, and nothing stays
reserved."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.app import Runtime
from holdfast.events.session import SessionError
from holdfast.models.info import ModelInfo, TokenPrice, TokenRates
from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Failure, Reply, ScriptedCall, ScriptedModel
from holdfast.models.server import ModelServer
from holdfast.server.embedded.session import Session
from holdfast.store import crash_points
from holdfast.store.budget import Change, OwnerLimits, plan
from holdfast.store.store import Store
from tests.faults.world import bodies_of, endings_of, says, settings

pytestmark = pytest.mark.anyio

DOLLAR = 1_000_000
RATES = TokenRates(input=0, output=100 * DOLLAR, cache_read=0, cache_write=0)
INFO = ModelInfo(max_output=1_000, price=TokenPrice(rates=RATES), is_known=True)
"""An answer of 1,000 tokens costs ten cents."""


def costing(cents: int, *calls: ScriptedCall, text: str = "Done.") -> Reply:
    usage = TokenUsage(input_tokens=1, output_tokens=cents * 100, cost_microdollars=cents * DOLLAR // 100)
    return Reply(text=text, tool_calls=calls, usage=usage)


def runtime(database: Path, *replies: Reply, **more: Any) -> Runtime:
    model = ScriptedModel(says(*replies), name="priced", info=INFO)
    return Runtime(model=model, config=settings(database, titles="words", **more))


def store_of(runtime: Runtime) -> Store:
    return runtime.operations.store


async def spent(runtime: Runtime, session: Session) -> int:
    return (await store_of(runtime).budget(session.key.owner)).spent.day


async def errors_of(session: Session) -> list[str]:
    return [body.error_type for body in await bodies_of(session, SessionError)]


async def test_a_turn_without_money_ends_and_goes_on_later(database: Path) -> None:
    async with runtime(database, costing(9), budget_day=10 * DOLLAR // 100) as opened:
        session = await opened.session("s")
        assert (await session.run("Hello")).reason == "completed"
        assert await spent(opened, session) == 90_000
        ended = await session.run("And again")
        assert ended.reason == "error"
        (error,) = await bodies_of(session, SessionError)
        assert error.error_type == "over_budget"
        assert error.message.startswith("Today's budget is used up. All work so far is kept. You can go on from 20")
        assert "$" not in error.message
        await store_of(opened).edit_budget(
            session.key.owner, lambda seen: plan(seen.budget, Change(at=0, to=OwnerLimits(day=DOLLAR)), seen.time)
        )
        assert (await session.run("Go on")).reason == "completed"
        assert await spent(opened, session) == 180_000
        assert await endings_of(session) == ["completed", "error", "completed"]


async def test_a_turn_ends_between_its_steps_with_its_work_kept(database: Path) -> None:
    step = costing(9, ScriptedCall("exec", {"command": "echo lit > lamp"}))
    async with runtime(database, step, costing(1), budget_turn=10 * DOLLAR // 100) as opened:
        session = await opened.session("s", working_directory=str(database.parent), allow=["shell"])
        ended = await session.run("Light it")
        assert ended.reason == "error"
        assert await errors_of(session) == ["over_budget"]
        assert (database.parent / "lamp").read_text() == "lit\n"
        assert await spent(opened, session) == 90_000
        assert (await session.run("Go on")).reason == "completed", "another turn has a budget of its own"
        assert await spent(opened, session) == 100_000


async def test_a_failed_attempt_costs_nothing_and_the_next_is_reserved_again(database: Path) -> None:
    down = Failure(kind="rate_limited", times=2)
    answer = replace(costing(3), fail=down)
    async with runtime(database, answer, budget_day=12 * DOLLAR // 100) as opened:
        session = await opened.session("s")
        assert (await session.run("Hello")).reason == "completed"
        assert await spent(opened, session) == 30_000
        assert await store_of(opened).settle_left() == 0


async def test_an_answer_of_unknown_cost_is_charged_what_was_reserved(database: Path) -> None:
    async with runtime(database, Reply(text="Done."), budget_day=15 * DOLLAR // 100) as opened:
        session = await opened.session("s")
        assert (await session.run("Hello")).reason == "completed"
        assert await spent(opened, session) == 100_000
        assert (await session.run("Again")).reason == "completed"
        assert await spent(opened, session) == 150_000, "the second answer could be half as long"


async def test_a_model_without_a_price_is_refused_where_a_budget_holds(database: Path) -> None:
    model = ScriptedModel(says(Reply(text="Hi")), info=ModelInfo())
    async with Runtime(model=model, config=settings(database, budget_week=DOLLAR)) as opened:
        session = await opened.session("s")
        assert (await session.run("Hello")).reason == "error"
        (error,) = await bodies_of(session, SessionError)
        assert error.error_type == "over_budget"
        assert "HOLDFAST_MODELS" in error.message


async def test_an_answer_is_as_long_as_the_money_buys(database: Path) -> None:
    facts = database.parent / "models.toml"
    facts.write_text('["openai/m"]\nmax_output = 1000\nprice = { input = 0, output = 100 }\n', encoding="utf-8")
    async with ModelServer(says(Reply(text="Short."))) as server:
        config = settings(
            database,
            model="openai/m",
            model_base_url=server.url,
            models=str(facts),
            budget_day=6 * DOLLAR // 100,
            titles="words",
        )
        async with Runtime(config=config) as opened:
            session = await opened.session("s")
            assert (await session.run("Hello")).reason == "completed"
        request = server.requests[0]
        assert b'"max_tokens":600' in request.replace(b" ", b"") or b'"max_completion_tokens":600' in request.replace(
            b" ", b""
        )


async def test_reserving_adds_no_commit(database: Path) -> None:
    """Nor does settling: the units of a turn are the same with and without a budget."""

    async def units_of_turns(name: str, **more: Any) -> list[tuple[str, ...]]:
        step = costing(1, ScriptedCall("exec", {"command": "true"}))
        folder = database.parent / name
        folder.mkdir()
        async with runtime(folder / "holdfast.db", step, costing(1), **more) as opened:
            session = await opened.session("s", working_directory=str(folder), allow=["shell"])
            seen: list[tuple[str, ...]] = []
            crash_points.install(lambda point: seen.append((point,)) if point.endswith(":after") else None)
            try:
                assert (await session.run("Hello")).reason == "completed"
                assert (await session.run("Again")).reason == "completed"
            finally:
                crash_points.install(None)
            return [point for point in seen if point[0].startswith("commit:") and "segments" not in point[0]]

    assert await units_of_turns("limited", budget_day=DOLLAR) == await units_of_turns("free")


async def test_titles_and_summaries_need_money_too(database: Path) -> None:
    model = ScriptedModel(says(costing(8)), name="priced", info=INFO)
    async with Runtime(model=model, config=settings(database, budget_day=10 * DOLLAR // 100)) as opened:
        session = await opened.session("s")
        assert (await session.run("Fill the lamps, please")).reason == "completed"
        assert await spent(opened, session) == 80_000
        assert (await session.look()).title == "Fill the lamps, please", "there was no money for a better one"
