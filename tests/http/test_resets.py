"""Resets that people ask for: granted or declined by an outside system, and refunded if there was none."""

import base64
import hmac
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from holdfast.app import Runtime
from holdfast.events.ids import Key, MessageId, Owner, SessionId
from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.server.errors import Conflict
from holdfast.server.http.credit_hook import CreditHook
from holdfast.server.http.errors import ApiError
from holdfast.server.http.resets import Resets
from holdfast.store.budget import Change, Credit, OwnerBudget, OwnerLimits, plan
from holdfast.store.clock import SystemClock
from holdfast.store.errors import StoreUnavailable
from holdfast.store.store import LedgerEntry, Store, Unit
from tests.faults.world import says, settings
from tests.http.test_identity import made_key
from tests.http.world import Model, Place, code_of

ADA = Owner("ada")
SECRET = b"a-secret-of-the-credit-hook"
DOLLAR = 1_000_000


class Outside:
    """The outside system. It keeps what it was sent, and answers with the statuses it was given; None: not at all."""

    def __init__(self) -> None:
        self.statuses: list[int | None] = []
        self.sent: list[tuple[str, str]] = []
        self.data: list[dict[str, Any]] = []

    async def post(self, body: bytes, headers: Mapping[str, str]) -> int | None:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        digest = base64.b64encode(hmac.new(SECRET, signed, "sha256").digest()).decode()
        assert headers["webhook-signature"] == f"v1,{digest}"
        said = msgspec.json.decode(body)
        self.sent.append((said["type"], headers["webhook-id"]))
        self.data.append(said["data"])
        return self.statuses.pop(0) if self.statuses else 200

    @property
    def said(self) -> list[str]:
        return [kind for kind, _ in self.sent]


class World:
    def __init__(self, runtime: Runtime) -> None:
        self.store: Store = runtime.operations.store
        self.operations = runtime.operations
        self.outside = Outside()
        self.resets = self.new_resets()

    def new_resets(self) -> Resets:
        """Those of another process, as far as resets go."""
        clock = SystemClock()
        return Resets(self.operations, CreditHook(self.outside.post, SECRET, clock), clock)

    async def budget(self) -> OwnerBudget:
        return (await self.store.budget(ADA)).budget

    async def spend(self, dollars: int) -> None:
        entry = LedgerEntry(
            message_id=MessageId(f"m{len(await self.store.ledger(ADA))}"),
            attempt=1,
            model="m",
            input_tokens=1,
            output_tokens=1,
            cache_read_tokens=0,
            cost_microdollars=dollars * DOLLAR,
            time=SystemClock().now_ms(),
        )
        await self.store.commit(Unit(key=Key(ADA, SessionId("s")), fence=None, ledger=(entry,)))

    async def percent(self) -> float | None:
        return (await self.operations.gauge(ADA, with_amounts=False)).day.percent


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    config = settings(tmp_path / "db", budget_day=2 * DOLLAR, titles="words", owner="ada")
    async with Runtime(model=ScriptedModel(says()), config=config) as runtime:
        await runtime.session("s")
        yield World(runtime)


async def refused(world: World, *, status: int, code: str) -> None:
    with pytest.raises(ApiError) as found:
        await world.resets.reset(ADA)
    assert (found.value.status, found.value.code) == (status, code)


async def test_a_granted_reset_gives_the_day_back_and_is_counted(world: World) -> None:
    await world.spend(3)
    assert await world.percent() == 100.0
    await world.resets.reset(ADA)
    assert await world.percent() == 0.0
    assert (await world.budget()).resets == 1
    assert (await world.budget()).credit is None
    assert world.outside.said == ["budget.reset"]
    assert world.outside.data[0] == {
        "credit_id": world.outside.sent[0][1],
        "owner": "ada",
        "tier": "",
        "day_microdollars": 2 * DOLLAR,
    }


@pytest.mark.parametrize("spent", [0, 1])
async def test_nobody_is_asked_for_a_reset_of_a_day_that_is_not_used_up(world: World, spent: int) -> None:
    await world.spend(spent)
    with pytest.raises(Conflict) as found:
        await world.resets.reset(ADA)
    assert found.value.code == "reset_refused"
    assert world.outside.sent == []


async def test_without_a_limit_there_is_nothing_to_reset(world: World) -> None:
    await world.spend(3)
    await world.operations.set_limits(ADA, OwnerLimits(day=None))
    with pytest.raises(Conflict):
        await world.resets.reset(ADA)
    assert world.outside.sent == []


@pytest.mark.parametrize("status", [400, 402, 403, 422])
async def test_a_declined_reset_changes_nothing_and_may_be_asked_for_again(world: World, status: int) -> None:
    await world.spend(3)
    world.outside.statuses = [status]
    await refused(world, status=402, code="reset_declined")
    assert (await world.percent(), (await world.budget()).resets, (await world.budget()).credit) == (100.0, 0, None)
    await world.resets.reset(ADA)
    assert await world.percent() == 0.0
    assert world.outside.said == ["budget.reset"] * 2
    assert len(set(world.outside.sent)) == 2, "each question has an id of its own"


@pytest.mark.parametrize("status", [None, 500, 503, 408, 429, 302])
async def test_a_question_without_an_answer_is_refunded(world: World, status: int | None) -> None:
    await world.spend(3)
    world.outside.statuses = [status]
    await refused(world, status=503, code="credit_unavailable")
    assert world.outside.said == ["budget.reset", "budget.reset.refunded"]
    (asked, refunded) = (message_id for _, message_id in world.outside.sent)
    assert refunded == f"{asked}:refund"
    assert world.outside.data[1]["credit_id"] == asked
    assert (await world.percent(), (await world.budget()).resets, (await world.budget()).credit) == (100.0, 0, None)


async def test_a_refund_that_is_not_confirmed_is_repeated_until_it_is(world: World) -> None:
    await world.spend(3)
    world.outside.statuses = [None, None, 500, None, 404]
    await refused(world, status=503, code="credit_unavailable")
    assert (await world.budget()).credit is not None
    await world.new_resets().refund_due()
    assert (await world.budget()).credit is not None
    await refused(world, status=503, code="credit_unavailable")
    assert world.outside.said == ["budget.reset"] + ["budget.reset.refunded"] * 3, "no other question before"
    await world.resets.reset(ADA)
    assert world.outside.said[4:] == ["budget.reset.refunded", "budget.reset"]
    assert len({message_id for kind, message_id in world.outside.sent if kind == "budget.reset.refunded"}) == 1
    assert (await world.budget()).resets == 1
    sent = len(world.outside.sent)
    await world.resets.refund_due()
    assert len(world.outside.sent) == sent


async def test_what_a_dead_process_asked_for_is_refunded_by_another(world: World) -> None:
    await world.spend(3)

    async def died(at: int) -> None:
        credit = Credit(id="c", at=at)
        await world.store.edit_budget(ADA, lambda seen: replace(seen.budget, credit=credit))

    await died(SystemClock().now_ms())
    await world.resets.refund_due()
    assert world.outside.sent == [], "its process may be at work"
    with pytest.raises(Conflict) as found:
        await world.resets.reset(ADA)
    assert found.value.code == "reset_under_way"
    await died(SystemClock().now_ms() - 121_000)
    await world.resets.refund_due()
    assert world.outside.sent == [("budget.reset.refunded", "c:refund")]
    assert (await world.budget()).credit is None


async def test_a_reset_that_was_granted_too_late_is_refunded(world: World) -> None:
    await world.spend(3)
    post = world.outside.post

    async def raise_the_limit(body: bytes, headers: Mapping[str, str]) -> int | None:
        await world.store.edit_budget(
            ADA, lambda seen: plan(seen.budget, Change(at=0, to=OwnerLimits(day=9 * DOLLAR)), seen.time)
        )
        return await post(body, headers)

    clock = SystemClock()
    resets = Resets(world.operations, CreditHook(raise_the_limit, SECRET, clock), clock)
    with pytest.raises(Conflict) as found:
        await resets.reset(ADA)
    assert found.value.code == "reset_refused"
    assert world.outside.said == ["budget.reset", "budget.reset.refunded"]
    assert ((await world.budget()).resets, (await world.budget()).credit) == (0, None)


async def test_a_credit_that_another_process_refunded_makes_no_reset(world: World) -> None:
    await world.spend(3)
    post = world.outside.post

    async def slow(body: bytes, headers: Mapping[str, str]) -> int | None:
        """While it answers, the credit grows old, and another process refunds it."""
        status = await post(body, headers)
        if b"refunded" not in body:
            await world.store.edit_budget(ADA, _aged)
            world.outside.statuses = [None]
            await world.new_resets().refund_due()
        return status

    def _aged(seen: Any) -> OwnerBudget:
        assert seen.budget.credit is not None
        aged: OwnerBudget = replace(seen.budget, credit=replace(seen.budget.credit, at=0))
        return aged

    clock = SystemClock()
    with pytest.raises(Conflict):
        await Resets(world.operations, CreditHook(slow, SECRET, clock), clock).reset(ADA)
    assert (await world.percent(), (await world.budget()).resets) == (100.0, 0)
    assert world.outside.said[0] == "budget.reset"
    assert set(world.outside.said[1:]) == {"budget.reset.refunded"}


async def test_of_two_people_who_ask_at_once_one_is_told_to_wait(world: World) -> None:
    await world.spend(3)
    post = world.outside.post

    async def meanwhile(body: bytes, headers: Mapping[str, str]) -> int | None:
        with pytest.raises(Conflict) as found:
            await world.new_resets().reset(ADA)
        assert found.value.code == "reset_under_way"
        return await post(body, headers)

    clock = SystemClock()
    await Resets(world.operations, CreditHook(meanwhile, SECRET, clock), clock).reset(ADA)
    assert world.outside.said == ["budget.reset"]
    assert (await world.budget()).resets == 1


async def test_a_gauge_fails_open_and_a_reset_fails_closed(world: World) -> None:
    await world.spend(3)
    await world.store.close()
    gauge = await world.operations.gauge(ADA, with_amounts=True)
    assert (gauge.day.percent, gauge.day.is_blocked, gauge.day.resets_at, gauge.tier) == (None, None, None, None)
    with pytest.raises(StoreUnavailable):
        await world.resets.reset(ADA)
    assert world.outside.sent == []


# Over HTTP, with an outside system that is a server


@pytest.fixture
async def credit_url(world_of: Outside) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        status = await world_of.post(await request.read(), request.headers)
        return web.Response(status=status or 500)

    app = web.Application()
    app.router.add_post("/credit", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/credit"
    await runner.cleanup()


@pytest.fixture
def world_of() -> Outside:
    return Outside()


async def test_a_person_resets_over_http(tmp_path: Path, world_of: Outside, credit_url: str) -> None:
    usage = TokenUsage(input_tokens=1, output_tokens=1, cost_microdollars=3 * DOLLAR)
    facts = tmp_path / "models.toml"
    facts.write_text('["openai/scripted"]\nmax_output = 1000\nprice = { input = 1, output = 1 }\n', encoding="utf-8")
    script = Script(rules=(Rule(replies=(Reply(text="Hello.", usage=usage),)),))
    async with Model(script) as model:
        place = Place(tmp_path, model)
        key = await made_key(place, "ada", "ada")
        async with (
            place.serve(
                *("--auth", "keys"),
                HOLDFAST_MODELS=str(facts),
                HOLDFAST_BUDGET_DAY="2",
                HOLDFAST_CREDIT_URL=credit_url,
                HOLDFAST_CREDIT_SECRET=SECRET.decode(),
            ) as server,
            server.client(key) as ada,
        ):
            await ada.make(id="s")
            assert (await ada.get("/v1/budget")).json()["can_reset"] is True
            early = await ada.post("/v1/budget/reset")
            assert (early.status_code, code_of(early)) == (400, "reset_refused")
            await ada.say("s", "hello")
            world_of.statuses = [402, 500, 200]
            declined = await ada.post("/v1/budget/reset")
            assert (declined.status_code, code_of(declined)) == (402, "reset_declined")
            unknown = await ada.post("/v1/budget/reset")
            assert (unknown.status_code, code_of(unknown)) == (503, "credit_unavailable")
            assert unknown.headers["retry-after"] == "30"
            granted = await ada.post("/v1/budget/reset")
            assert granted.status_code == 200
            assert granted.json()["day"]["percent"] == 0.0
            assert "microdollars" not in granted.text
    assert world_of.said == ["budget.reset", "budget.reset", "budget.reset.refunded", "budget.reset"]
