"""Compactions and pinned messages over HTTP: asked for, refused, cancelled, and shown in the page of messages."""

from typing import Any

import msgspec

from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Reply, Rule, Script
from tests.http.world import Client, Model, Place, code_of, patience

USAGE = TokenUsage(input_tokens=4_000, output_tokens=100, cache_read_tokens=3_000)

SCRIPT = Script(
    rules=(Rule(replies=(Reply(text="Noted. " * 200, usage=USAGE),)),),
    summary=Reply(text="## Goal\nTo note things.", usage=TokenUsage(input_tokens=500, output_tokens=20)),
)


async def talk(client: Client, session: str, *texts: str) -> None:
    await client.post("/v1/sessions", json={"id": session})
    for number, text in enumerate(texts, 1):
        await client.say(session, text, message_id=f"m{number}")


async def roles_of(client: Client, session: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = (await client.get(f"/v1/sessions/{session}")).json()["messages"]
    return messages


async def test_a_compaction_stands_in_the_page_of_messages_and_its_receipt_is_the_same_again(place: Place) -> None:
    own = place.data.parent / "own"
    async with patience(), Model(SCRIPT) as model, Place(own, model).serve() as server, server.client() as client:
        await talk(client, "long", "one", "two", "three")
        asked = {"compaction_id": "c1", "instructions": "Keep the numbers.", "wait": 20}
        first = await client.post("/v1/sessions/long/compact", json=asked)
        assert first.status_code == 200
        receipt = first.json()
        assert (receipt["outcome"], receipt["summary"]) == ("compacted", "## Goal\nTo note things.")
        assert 0 < receipt["tokens_after"] < receipt["tokens_before"] == 4_100
        assert (await client.post("/v1/sessions/long/compact", json=asked)).json() == receipt
        other = await client.post("/v1/sessions/long/compact", json={**asked, "instructions": "Other."})
        assert (other.status_code, code_of(other)) == (409, "id_reused")
        (shown,) = [found for found in await roles_of(client, "long") if found["role"] == "compaction"]
        assert (shown["success"], shown["method"], shown["trigger"]) == (True, "summary", "manual")
        assert (shown["kept"], shown["summary"]) == (3, receipt["summary"])
        assert (await client.get("/v1/sessions/long")).json()["context"]["usage"] is None
        context = (await client.get("/v1/sessions/long?usage=true")).json()["context"]
        assert (context["tokens"], context["compactions"]) == (receipt["tokens_after"], 1)
        assert context["window"] == 128_000
        usage = context["usage"]
        assert (usage["calls"], usage["input_tokens"], usage["cache_read_tokens"]) == (4, 12_500, 9_000)
        assert round(usage["cache_share"], 3) == 0.72


async def test_nothing_is_compacted_twice_at_once_and_a_cancelled_compaction_changes_nothing(place: Place) -> None:
    never = msgspec.structs.replace(SCRIPT, summary=Reply(text="Late.", delay_ms=1e9))
    own = place.data.parent / "own"
    async with patience(), Model(never) as model, Place(own, model).serve() as server, server.client() as client:
        await talk(client, "held", "good morning", "good evening")
        async with client.follow("held") as frames:
            begun = await client.post("/v1/sessions/held/compact", json={"compaction_id": "c1"})
            assert begun.json()["outcome"] in ("accepted", "compacting")
            await anext(frame async for frame in frames if frame.data.get("type") == "session.compaction_start")
        assert (await client.get("/v1/sessions/held")).json()["context"]["is_compacting"] is True
        second = await client.post("/v1/sessions/held/compact", json={"compaction_id": "c2", "wait": 20})
        assert (second.status_code, code_of(second)) == (409, "compaction_under_way")
        gone = await client.delete("/v1/sessions/held/compact")
        assert gone.json() == {"outcome": "cancelled"}
        receipt = (await client.post("/v1/sessions/held/compact", json={"compaction_id": "c1"})).json()
        assert (receipt["outcome"], receipt["error"]) == ("failed", "cancelled")
        context = (await client.get("/v1/sessions/held")).json()["context"]
        assert (context["compactions"], context["is_compacting"]) == (0, False)
        assert (await client.delete("/v1/sessions/held/compact")).json() == {"outcome": "nothing_to_cancel"}


async def test_a_session_without_an_older_part_has_nothing_to_compact(client: Client) -> None:
    await client.post("/v1/sessions", json={"id": "empty"})
    response = await client.post("/v1/sessions/empty/compact", json={"wait": 20})
    assert (response.status_code, code_of(response)) == (409, "nothing_to_compact")


async def test_a_message_is_pinned_and_unpinned_and_the_page_of_messages_shows_it(client: Client) -> None:
    await talk(client, "pins", "one", "two")
    assert (await client.put("/v1/sessions/pins/messages/m2/pin")).status_code == 204
    assert (await client.put("/v1/sessions/pins/messages/m2/pin")).status_code == 204
    said = {found["message_id"]: found["pinned"] for found in await roles_of(client, "pins") if found["role"] == "user"}
    assert said == {"m1": False, "m2": True}
    assert (await client.get("/v1/sessions/pins")).json()["context"]["pinned"] == ["m2"]
    assert (await client.delete("/v1/sessions/pins/messages/m2/pin")).status_code == 204
    assert not any(found.get("pinned") for found in await roles_of(client, "pins"))
    answer = next(found for found in await roles_of(client, "pins") if found["role"] == "assistant")
    refused = await client.put(f"/v1/sessions/pins/messages/{answer['message_id']}/pin")
    assert (refused.status_code, code_of(refused)) == (422, "not_a_persons_message")
    for session, message in (("pins", "missing"), ("elsewhere", "m1")):
        assert (await client.put(f"/v1/sessions/{session}/messages/{message}/pin")).status_code == 404


async def test_pinned_messages_are_few_and_short(client: Client) -> None:
    await talk(client, "most", "x" * 30_000, "y" * 30_000, "short")
    assert (await client.put("/v1/sessions/most/messages/m1/pin")).status_code == 204
    refused = await client.put("/v1/sessions/most/messages/m2/pin")
    assert (refused.status_code, code_of(refused)) == (409, "pins_too_long")
    assert "8,000 tokens" in refused.json()["error"]["message"]
    assert (await client.put("/v1/sessions/most/messages/m3/pin")).status_code == 204
