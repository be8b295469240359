"""Budgets and usage over HTTP: people see how much is used, admins see amounts and set limits, a billing system sets
limits by signed messages."""

import asyncio
import base64
import hmac
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Reply, Rule, Script
from holdfast.server.http.app import ROUTE_MODULES
from holdfast.server.http.endpoint import endpoints_of
from tests.http.test_identity import People, made_key
from tests.http.world import Client, Model, Place, code_of

COST = 123_457
"""What each answer costs, in microdollars: digits that nothing else has."""

USAGE = TokenUsage(input_tokens=1_000, output_tokens=2, cache_read_tokens=600, cost_microdollars=COST)
PRICES = (
    '["openai/scripted"]\nmax_output = 1000\nprice = { input = 10, output = 1, cache_read = 1, cache_write = 12 }\n'
)
SAVED = 600 * 9
"""What the cache saved with each answer, at these prices."""

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes or so").decode()
WORDS = re.compile("microdollars|123457|246914|370371|0\\.123", re.IGNORECASE)


@pytest.fixture(scope="module")
async def priced_model() -> AsyncIterator[Model]:
    async with Model(Script(rules=(Rule(replies=(Reply(text="Hello, world.", usage=USAGE),)),))) as server:
        yield server


async def world(folder: Path, model: Model) -> tuple[Place, dict[str, str], dict[str, Any]]:
    facts = folder / "models.toml"
    facts.write_text(PRICES, encoding="utf-8")
    place = Place(folder, model)
    keys = {"ada": await made_key(place, "ada", "ada"), "root": await made_key(place, "root", "root", "admin")}
    keys["bob"] = await made_key(place, "bob", "bob")
    environ: dict[str, Any] = {
        "HOLDFAST_MODELS": str(facts),
        "HOLDFAST_BUDGET_DAY": "0.2",
        "HOLDFAST_BUDGET_WEEK": "1",
        "HOLDFAST_BUDGET_TIERS": "free=0.5,pro=10",
        "HOLDFAST_BILLING_SECRET": SECRET,
    }
    return place, keys, environ


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory, priced_model: Model) -> AsyncIterator[People]:
    """For tests that change nothing."""
    place, keys, environ = await world(tmp_path_factory.mktemp("budgets"), priced_model)
    async with place.serve("--auth", "keys", **environ) as server:
        yield People(server, keys)


@pytest.fixture
async def people(tmp_path: Path, priced_model: Model) -> AsyncIterator[People]:
    place, keys, environ = await world(tmp_path, priced_model)
    async with place.serve("--auth", "keys", **environ) as server:
        yield People(server, keys)


async def ends(client: Client, session: str) -> list[str]:
    """How the turns of a session ended: the code of the error, or the reason."""
    found = []
    for event in await client.events(session):
        if event["type"] == "session.error":
            found.append(event["data"]["errorType"])
        elif event["type"] == "holdfast.turn_ended" and event["data"]["reason"] != "error":
            found.append(event["data"]["reason"])
    return found


# What people see

BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/sessions/{session_id}/stream"): {"text": "again"},
    ("POST", "/v1/chat"): {"id": "walked", "messages": [{"role": "user", "parts": [{"type": "text", "text": "x"}]}]},
    ("POST", "/v1/sessions/{session_id}/messages"): {"text": "and again", "delivery": "enqueue"},
}


async def test_a_user_key_reads_no_amount_at_any_route(people: People) -> None:
    async with people.client("ada") as ada, people.client("root") as root:
        for client in (ada, root):
            await client.make(id="walked")
            assert "Hello" in (await client.say("walked", "good morning")).text
        events = (await root.get("/v1/sessions/walked/events")).text
        assert f'"costMicrodollars":{COST}' in events, "an admin sees what is hidden from a user"
        exported = await root.get("/v1/sessions/walked/export")
        assert str(COST) in exported.text
        seen = set()
        for endpoint in sorted(endpoints_of(ROUTE_MODULES), key=lambda each: each.method == "DELETE"):
            path = endpoint.path
            for name in ("message_id", "request_id", "task_id", "permission_id", "owner", "name"):
                path = path.replace(f"{{{name}}}", "ada")
            body = BODIES.get((endpoint.method, endpoint.path), {})
            content = None if endpoint.method == "GET" else body
            path = path.replace("{session_id}", "walked")
            response = await ada.request(endpoint.method, path, json=content)
            if not endpoint.path.startswith("/assets"):
                assert WORDS.findall(response.text) == [], (endpoint.method, endpoint.path)
            seen.add(response.status_code)
            if endpoint.is_stream:
                assert WORDS.findall(await streamed(ada, path)) == []
        assert {200, 201, 204, 403, 404} <= seen, seen


async def streamed(client: Client, path: str) -> str:
    """The event stream of a session up to the end of its first turn."""
    text = ""
    async with client.stream("GET", path, headers={"accept": "text/event-stream"}) as response:
        async for line in response.aiter_lines():
            text += line
            if "holdfast.turn_ended" in line:
                return text
    return text


async def test_people_see_how_much_is_used_when_there_is_more_and_their_tier(people: People) -> None:
    async with people.client("ada") as ada, people.client("root") as root:
        await ada.make(id="s")
        gauge = (await ada.get("/v1/budget")).json()
        assert gauge["day"] == {"percent": 0.0, "resets_at": gauge["day"]["resets_at"], "is_blocked": False}
        assert (gauge["tier"], gauge["can_reset"]) == (None, False)
        await ada.say("s", "good morning")
        gauge = (await ada.get("/v1/budget")).json()
        assert (gauge["day"]["percent"], gauge["day"]["is_blocked"]) == (61.7, False)
        assert (gauge["week"]["percent"], gauge["week"]["is_blocked"]) == (12.3, False)
        assert gauge["day"]["resets_at"] % 86_400_000 == 0
        assert gauge["week"]["resets_at"] % (7 * 86_400_000) == 4 * 86_400_000, "a Monday; 1970 began on a Thursday"
        await root.put("/v1/owners/ada/budget", json={"tier": "free", "week_microdollars": None})
        gauge = (await ada.get("/v1/budget")).json()
        assert gauge["day"]["percent"] == 100.0
        assert gauge["day"]["is_blocked"] is True
        assert gauge["week"] == {"percent": None, "resets_at": None, "is_blocked": False}
        assert gauge["tier"] == "free"
        await ada.say("s", "more")
        assert await ends(ada, "s") == ["completed", "over_budget"]
        mine = (await root.get("/v1/budget")).json()
        assert mine["day"]["limit_microdollars"] == 200_000
        assert mine["day"]["spent_microdollars"] == 0


async def test_the_local_owner_of_a_server_without_keys_sees_amounts(tmp_path: Path, priced_model: Model) -> None:
    place, _, environ = await world(tmp_path, priced_model)
    async with place.serve(**environ) as server, server.client() as client:
        session = await client.make()
        await client.say(session, "good morning")
        usages = [event for event in await client.events(session) if event["type"] == "assistant.usage"]
        assert [usage["data"]["costMicrodollars"] for usage in usages] == [COST]
        assert (await client.get("/v1/budget")).json()["day"]["spent_microdollars"] == COST


# Admins


ADMIN_ROUTES = [
    ("GET", "/v1/usage"),
    ("GET", "/v1/owners"),
    ("GET", "/v1/owners/ada/budget"),
    ("PUT", "/v1/owners/ada/budget"),
    ("POST", "/v1/owners/ada/budget/reset"),
]


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
async def test_a_user_is_no_admin(shared: People, method: str, path: str) -> None:
    async with shared.client("ada") as ada, shared.client("root") as root:
        before = (await root.get("/v1/owners/ada/budget")).json()
        response = await ada.request(method, path, json={"tier": "pro"} if method == "PUT" else None)
        assert (response.status_code, code_of(response)) == (403, "admins_only")
        assert (await root.get("/v1/owners/ada/budget")).json() == before


async def test_usage_is_summed_up_by_owner_model_session_and_day(people: People) -> None:
    async with people.client("ada") as ada, people.client("bob") as bob, people.client("root") as root:
        for client, sessions in ((ada, ("a", "b")), (bob, ("a",))):
            for session in sessions:
                await client.make(id=session)
                await client.say(session, "good morning")

        async def rows(**query: str) -> list[dict[str, Any]]:
            response = await root.get("/v1/usage", params=query)
            assert response.status_code == 200, response.text
            found: list[dict[str, Any]] = response.json()["rows"]
            return found

        by_owner = await rows(group="owner")
        one = {
            "calls": 1,
            "unknown_calls": 0,
            "input_tokens": 1_000,
            "output_tokens": 2,
            "cache_read_tokens": 600,
            "cache_write_tokens": 0,
            "cost_microdollars": COST,
            "charged_microdollars": COST,
            "saved_microdollars": SAVED,
        }
        two = {name: 2 * figure for name, figure in one.items()}
        assert by_owner == [{"owner": "ada", **two}, {"owner": "bob", **one}]
        assert await rows(group="session") == [
            {"owner": "ada", "session": "a", **one},
            {"owner": "ada", "session": "b", **one},
            {"owner": "bob", "session": "a", **one},
        ]
        three = {name: 3 * figure for name, figure in one.items()}
        assert await rows(group="model") == [{"model": "openai/scripted", **three}]
        (day,) = await rows()
        assert {**day, "day": None} == {"day": None, **three}
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", day["day"])
        assert await rows(group="owner", owner="bob") == [{"owner": "bob", **one}]
        assert await rows(group="model", owner="ada", session="b") == [{"model": "openai/scripted", **one}]
        assert await rows(**{"from": "2000-01-01", "to": "2000-02-01"}) == []
        whole = (await root.get("/v1/usage", params={"group": "owner", "limit": "1"})).json()
        assert [row["owner"] for row in whole["rows"]] == ["ada"]
        assert whole["more"] is True
        assert whole["total"] == three


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("from=yesterday", "invalid"),
        ("from=2026-02-30", "invalid"),
        ("from=2026-02-02&to=2026-02-01", "period_invalid"),
        ("from=2020-01-01&to=2026-02-01", "period_invalid"),
        ("group=tier", "invalid"),
        ("owner=", "invalid"),
        ("limit=0", "invalid"),
        ("who=ada", "invalid"),
        ("group=day&group=day", "invalid"),
    ],
)
async def test_a_wrong_question_about_usage_is_refused(shared: People, query: str, code: str) -> None:
    async with shared.client("root") as root:
        response = await root.get(f"/v1/usage?{query}")
        assert (response.status_code, code_of(response)) == (422, code)


async def test_limits_are_set_at_once_or_from_a_date_and_a_change_back_cancels_a_planned_one(people: People) -> None:
    async with people.client("root") as root:

        async def put(**body: Any) -> dict[str, Any]:
            response = await root.put("/v1/owners/ada/budget", json=body)
            assert response.status_code == 200, response.text
            found: dict[str, Any] = response.json()
            return found

        view = await put(tier="pro", week_microdollars=7)
        assert view["limits"] == {"tier": "pro", "week_microdollars": 7}
        assert (view["day"]["limit_microdollars"], view["week"]["limit_microdollars"]) == (2_000_000, 7)
        view = await put(**{"tier": "free", "from": "2100-01-01"})
        assert view["limits"]["tier"] == "pro", "what is planned does not hold yet"
        assert view["planned"] == [{"at": 4_102_444_800_000, "limits": {"tier": "free"}}]
        view = await put(**{"tier": "pro", "week_microdollars": 7, "from": "2100-01-01"})
        assert view["planned"] == [], "back to what holds then anyway: nothing is planned any more"
        await put(**{"tier": "free", "from": "2100-01-01"})
        view = await put(tier="pro", day_microdollars=None)
        assert view["planned"] == []
        assert view["limits"] == {"tier": "pro", "day_microdollars": None}
        assert (view["day"]["limit_microdollars"], view["day"]["percent"]) == (None, None)
        view = await put(day_microdollars=0)
        assert (view["day"]["percent"], view["day"]["is_blocked"], view["day"]["resets_at"]) == (100.0, True, None)
        assert (await put(**{"tier": "pro", "from": "2000-01-01"}))["limits"] == {"tier": "pro"}, "a past date: at once"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"tier": "gold"}, 400, "tier_unknown"),
        ({"day_microdollars": -1}, 422, "invalid"),
        ({"day_microdollars": 1.5}, 422, "invalid"),
        ({"day_microdollars": "5"}, 422, "invalid"),
        ({"day_microdollars": 10**16}, 422, "invalid"),
        ({"week": 5}, 422, "invalid"),
        ({"tier": None}, 422, "invalid"),
        ({"from": "soon"}, 422, "invalid"),
        ({"from": "2026-13-01"}, 422, "invalid"),
    ],
)
async def test_wrong_limits_are_refused(shared: People, body: dict[str, Any], status: int, code: str) -> None:
    async with shared.client("root") as root:
        before = (await root.get("/v1/owners/ada/budget")).json()
        response = await root.put("/v1/owners/ada/budget", json=body)
        assert (response.status_code, code_of(response)) == (status, code)
        assert (await root.get("/v1/owners/ada/budget")).json() == before


async def test_owners_near_a_limit_are_listed_the_nearest_first(people: People) -> None:
    async with people.client("ada") as ada, people.client("bob") as bob, people.client("root") as root:
        for client in (ada, bob):
            await client.make(id="s")
            await client.say("s", "good morning")
        await root.put("/v1/owners/bob/budget", json={"day_microdollars": 130_000})
        await root.put("/v1/owners/eve/budget", json={"day_microdollars": 0})
        await root.put("/v1/owners/zoe/budget", json={"day_microdollars": None, "week_microdollars": None})

        async def near(**query: Any) -> list[tuple[str, float]]:
            found = (await root.get("/v1/owners", params=query)).json()["owners"]
            return [(owner["owner"], owner["day"]["percent"]) for owner in found]

        assert await near() == [("eve", 100.0), ("bob", 94.9)]
        assert await near(near=0) == [("eve", 100.0), ("bob", 94.9), ("ada", 61.7)]
        assert await near(near=100, limit=1) == [("eve", 100.0)]
        for query in ("near=101", "near=x", "limit=0"):
            assert code_of(await root.get(f"/v1/owners?{query}")) == "invalid"


@pytest.mark.parametrize("owner", ["x" * 65, "%20", "a%00b"])
async def test_an_owner_has_the_name_of_one(shared: People, owner: str) -> None:
    async with shared.client("root") as root:
        response = await root.get(f"/v1/owners/{owner}/budget")
        assert (response.status_code, code_of(response)) == (422, "owner_invalid")


async def test_an_admin_resets_a_day_that_is_used_up(people: People) -> None:
    async with people.client("ada") as ada, people.client("root") as root:
        await ada.make(id="s")
        refused = await root.post("/v1/owners/ada/budget/reset")
        assert (refused.status_code, code_of(refused)) == (400, "reset_refused")
        for text in ("one", "two", "three"):
            await ada.say("s", text)
        assert await ends(ada, "s") == ["completed", "completed", "over_budget"]
        view = (await root.post("/v1/owners/ada/budget/reset")).json()
        assert (view["resets"], view["day"]["percent"]) == (1, 0.0)
        assert view["week"]["spent_microdollars"] == 2 * COST - 200_000, "one day's allowance is given back"
        await ada.say("s", "four")
        assert (await ends(ada, "s"))[-1] == "completed"
        again = await root.post("/v1/owners/ada/budget/reset")
        assert (again.status_code, code_of(again)) == (400, "reset_refused")
        assert (await root.get("/v1/owners/ada/budget")).json()["resets"] == 1


async def test_without_a_credit_hook_people_cannot_reset(shared: People) -> None:
    async with shared.client("ada") as ada:
        response = await ada.post("/v1/budget/reset")
        assert (response.status_code, code_of(response)) == (404, "not_found")


# Billing


def signed(body: bytes, message_id: str = "msg_1", *, at: float | None = None, key: str = SECRET) -> dict[str, str]:
    """The headers of a billing system, written down as Standard Webhooks says, without the code that checks them."""
    stamp = str(int(time.time() if at is None else at))
    secret = base64.b64decode(key.removeprefix("whsec_"))
    digest = hmac.new(secret, message_id.encode() + b"." + stamp.encode() + b"." + body, "sha256").digest()
    signature = "v1,bm90IHRoaXMgb25l v1," + base64.b64encode(digest).decode()
    return {"webhook-id": message_id, "webhook-timestamp": stamp, "webhook-signature": signature}


async def bill(client: Client, message_id: str = "msg_1", **body: Any) -> httpx.Response:
    content = msgspec.json.encode(body)
    return await client.post("/v1/billing", content=content, headers=signed(content, message_id))


async def test_a_billing_system_sets_limits_without_a_key_in_any_order_and_each_once(people: People) -> None:
    async with people.server.client("") as billing, people.client("root") as root:

        async def tier() -> str:
            found = (await root.get("/v1/owners/ada/budget")).json()
            return f"{found['limits']['tier']} {found['billing_version']}"

        assert (await bill(billing, "a", owner="ada", version=2, tier="pro")).json() == {"applied": True}
        assert await tier() == "pro 2"
        assert (await bill(billing, "a", owner="ada", version=2, tier="pro")).json() == {"applied": False}
        late = await bill(billing, "b", owner="ada", version=1, tier="free")
        assert (late.status_code, late.json()) == (200, {"applied": False})
        assert await tier() == "pro 2"
        reused = await bill(billing, "a", owner="ada", version=3, tier="free")
        assert reused.json() == {"applied": False}, "an id counts once, whatever comes with it"
        assert await tier() == "pro 2"
        assert (await bill(billing, "c", owner="ada", version=4, tier="free")).json() == {"applied": True}
        assert await tier() == "free 4"
        planned = {"from": "2100-01-01"}
        assert (await bill(billing, "d", owner="ada", version=5, tier="pro", **planned)).json() == {"applied": True}
        assert await tier() == "free 5"
        assert (await bill(billing, "e", owner="ada", version=6, tier="free", **planned)).json() == {"applied": True}
        assert (await root.get("/v1/owners/ada/budget")).json()["planned"] == []


async def test_what_is_not_signed_or_not_in_time_sets_nothing(people: People) -> None:
    body = msgspec.json.encode({"owner": "ada", "version": 1, "tier": "pro"})
    good = signed(body)
    async with people.server.client("") as billing, people.client("root") as root:
        for headers in (
            {},
            {**good, "webhook-signature": ""},
            {**good, "webhook-signature": "v1,bm90IHRoaXMgb25l"},
            {**good, "webhook-signature": good["webhook-signature"].replace("v1,", "v2,")},
            {**good, "webhook-id": "another"},
            {**good, "webhook-id": "x" * 129},
            {**good, "webhook-timestamp": str(int(time.time()) + 1)},
            {**good, "webhook-timestamp": "now"},
            signed(body, at=time.time() - 400),
            signed(body, at=time.time() + 400),
            signed(body, key="whsec_" + base64.b64encode(b"another secret of 24 bytes").decode()),
            signed(body + b" "),
        ):
            response = await billing.post("/v1/billing", content=body, headers=headers)
            assert (response.status_code, code_of(response)) == (401, "signature_refused"), headers
        assert (await root.get("/v1/owners/ada/budget")).json()["billing_version"] == 0
        assert (await billing.post("/v1/billing", content=body, headers=good)).json() == {"applied": True}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"owner": "ada", "version": 1, "tier": "gold"}, 400, "tier_unknown"),
        ({"owner": "ada", "version": 0}, 422, "invalid"),
        ({"owner": "ada"}, 422, "invalid"),
        ({"version": 1}, 422, "invalid"),
        ({"owner": " ", "version": 1}, 422, "owner_invalid"),
        ({"owner": "ada", "version": 1, "limit": 5}, 422, "invalid"),
        ({"owner": "ada", "version": 1, "day_microdollars": -5}, 422, "invalid"),
        ({"owner": "ada", "version": 1, "tier": "x" * 10_001}, 413, "body_too_large"),
    ],
)
async def test_a_wrong_message_of_a_billing_system_is_refused(
    shared: People, body: dict[str, Any], status: int, code: str
) -> None:
    async with shared.server.client("") as billing, shared.client("root") as root:
        response = await bill(billing, **body)
        assert (response.status_code, code_of(response)) == (status, code)
        assert (await root.get("/v1/owners/ada/budget")).json()["billing_version"] == 0


async def test_without_a_secret_there_is_no_route_for_billing(client: Client) -> None:
    response = await bill(client, owner="ada", version=1)
    assert (response.status_code, code_of(response)) == (404, "not_found")
    assert (await client.get("/v1/billing")).status_code == 404


# Going on


async def test_a_turn_that_ended_without_money_goes_on_and_no_other(people: People) -> None:
    async with people.client("ada") as ada, people.client("root") as root:
        await ada.make(id="s")

        async def go_on(session: str = "s", **body: Any) -> httpx.Response:
            return await ada.post(f"/v1/sessions/{session}/continue", json=body)

        async def refused(code: str, *, status: int = 409, session: str = "s", **body: Any) -> None:
            response = await go_on(session, **body)
            assert (response.status_code, code_of(response)) == (status, code)

        await refused("nothing_to_continue")
        await refused("session_not_found", status=404, session="another")
        await refused("id_invalid", status=422, message_id=".x")
        await refused("invalid", status=422, text="More!")
        await ada.say("s", "one")
        await refused("nothing_to_continue")
        await ada.say("s", "two")
        await ada.say("s", "three")
        assert await ends(ada, "s") == ["completed", "completed", "over_budget"]
        await root.put("/v1/owners/ada/budget", json={"day_microdollars": None})
        first = await go_on()
        assert first.status_code == 200, first.text
        again = await go_on(message_id=first.json()["message_id"])
        assert (again.status_code, again.json()["duplicate"]) == (200, True)
        while (await ada.get("/v1/sessions/s/activity")).json()["is_settled"] is False:
            await ada.get("/v1/sessions/s/stream")
        assert await ends(ada, "s") == ["completed", "completed", "over_budget", "completed"]
        assert (await ada.texts("s")).count("Please go on.") == 1
        await refused("nothing_to_continue")


async def test_of_two_clients_that_go_on_at_once_one_message_is_sent(people: People) -> None:
    async with people.client("ada") as ada, people.client("root") as root:
        await root.put("/v1/owners/ada/budget", json={"day_microdollars": 0})
        await ada.make(id="s")
        await ada.say("s", "one")
        assert await ends(ada, "s") == ["over_budget"]
        found = await asyncio.gather(*(ada.post("/v1/sessions/s/continue", json={}) for _ in range(4)))
        sent = [response.json()["message_id"] for response in found if response.status_code == 200]
        assert set(sent) == {sent[0]}
        assert {code_of(response) for response in found if response.status_code != 200} <= {
            "busy",
            "nothing_to_continue",
        }
