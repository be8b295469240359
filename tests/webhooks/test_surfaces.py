"""Webhooks in Python, on a server and on the command line.

They are registered, shown without their secret, tested, changed, sent again and deleted; and what must be is refused.
"""

import asyncio
import base64
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.client import connect
from holdfast.config import load
from holdfast.events.webhook import REPORTED_EVENTS
from holdfast.models.scripted import ScriptedModel
from holdfast.protocol.home import Home
from holdfast.protocol.refusal import Conflict, Invalid, NotFound
from holdfast.protocol.webhook import WebhookDeliveryView
from tests.http.world import SCRIPT, Client, Model, Place, code_of, patience
from tests.webhooks.receiver import Receiver

pytestmark = pytest.mark.anyio

LOCAL = {"HOLDFAST_WEBHOOK_HOSTS": "127.0.0.1", "HOLDFAST_MAX_WEBHOOKS_PER_OWNER": "3"}


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    async with Model() as server:
        yield server


@pytest.fixture
def place(tmp_path: Path, model: Model) -> Place:
    return Place(tmp_path, model, **LOCAL)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture(params=["runtime", "server"])
async def home(request: pytest.FixtureRequest, tmp_path: Path, place: Place) -> AsyncIterator[Home]:
    if request.param == "runtime":
        config = load({"database": f"sqlite:///{tmp_path / 'own.db'}", "data_dir": str(tmp_path)}, LOCAL)
        async with patience(), Runtime(config=config, model=ScriptedModel(SCRIPT)) as runtime:
            yield runtime
    else:
        async with patience(), place.serve() as served, connect(served.url, served.token) as server:
            yield server


async def ended(home: Home, webhook_id: str, delivery_id: str) -> WebhookDeliveryView:
    """A delivery, once it has ended."""
    async with patience():
        while True:
            found = await home.webhooks.delivery(webhook_id, delivery_id)
            if found.state != "pending":
                return found
            await asyncio.sleep(0.01)


async def test_the_events_of_real_turns_arrive(home: Home, receiver: Receiver, tmp_path: Path) -> None:
    made = await home.webhooks.create(receiver.url)
    session = await home.session(working_directory=str(tmp_path))
    (asked,) = (await session.run("write a note", message_id="m1")).requests
    (request,) = await receiver.until(1)
    opened = request.verified(made.secret)
    assert (opened.type, opened.session_id) == ("request.opened", session.id)
    assert opened.data["request_id"] == asked.id
    assert (opened.data["kind"], opened.data["tool_name"], opened.data["title"]) == (
        "permission", "create", "write note.txt",
    )  # fmt: skip
    await session.approve(asked.id)
    turn = await session.result_of("m1")
    report = (await receiver.until(2))[1].verified(made.secret)
    assert (report.type, report.data["turn_id"], report.data["reason"]) == ("turn.ended", turn.turn_id, "completed")
    assert report.position > opened.position
    page = await home.webhooks.deliveries(made.webhook.id)
    assert [(delivery.type, delivery.session_id) for delivery in page.deliveries] == [
        ("turn.ended", session.id), ("request.opened", session.id),
    ]  # fmt: skip


async def test_a_webhook_is_shown_changed_tested_and_deleted(home: Home, receiver: Receiver) -> None:
    hooks = home.webhooks
    made = await hooks.create(receiver.url, events=["turn.ended"], description="mine")
    assert made.secret.startswith("whsec_")
    assert made.secret not in repr(made)
    assert await hooks.all() == (made.webhook,)
    assert await hooks.get(made.webhook.id) == made.webhook
    assert (made.webhook.url, made.webhook.events, made.webhook.description) == (
        receiver.url, ("turn.ended",), "mine",
    )  # fmt: skip
    test = await hooks.test(made.webhook.id)
    assert (test.type, test.session_id, test.position, test.state) == ("webhook.test", None, None, "pending")
    done = await ended(home, made.webhook.id, test.id)
    assert (done.state, done.status, done.attempts) == ("delivered", 204, 1)
    assert receiver.received[0].verified(made.secret).id == test.id
    receiver.answers = lambda request: 500
    again = await hooks.send_again(made.webhook.id, test.id)
    assert (again.state, again.id) == ("pending", test.id)
    failed = await ended(home, made.webhook.id, test.id)
    assert (failed.state, failed.status, failed.fault, failed.attempts) == ("given_up", 500, "status", 2)
    rotated = await hooks.rotate(made.webhook.id)
    assert rotated.secret != made.secret
    paused = await hooks.change(made.webhook.id, active=False, events=["task.ended"], description="")
    assert (paused.active, paused.events, paused.description) == (False, ("task.ended",), "")
    with pytest.raises(Conflict) as refused:
        await hooks.test(made.webhook.id)
    assert refused.value.code == "webhook_paused"
    assert (await hooks.change(made.webhook.id, active=True)).active
    page = await hooks.deliveries(made.webhook.id, limit=1, state="given_up")
    assert ([found.id for found in page.deliveries], page.next) == ([test.id], None)
    await hooks.delete(made.webhook.id)
    assert await hooks.all() == ()


async def test_deliveries_are_paged(home: Home, receiver: Receiver) -> None:
    made = await home.webhooks.create(receiver.url)
    tests = []
    for _ in range(3):
        tests.append((await home.webhooks.test(made.webhook.id)).id)
        await ended(home, made.webhook.id, tests[-1])
    first = await home.webhooks.deliveries(made.webhook.id, limit=2)
    assert ([found.id for found in first.deliveries], first.next) == ([tests[2], tests[1]], tests[1])
    last = await home.webhooks.deliveries(made.webhook.id, limit=2, after=first.next)
    assert ([found.id for found in last.deliveries], last.next) == ([tests[0]], None)


async def test_what_can_not_be_a_webhook_is_refused(home: Home, receiver: Receiver) -> None:
    hooks = home.webhooks
    for url, events, description, code in (
        ("https://169.254.169.254/latest", None, "", "webhook_url_refused"),
        ("http://example.org/", None, "", "webhook_url_refused"),
        (receiver.url, ["turn.began"], "", "webhook_event_unknown"),
        (receiver.url, [], "", "webhook_event_unknown"),
        (receiver.url, None, "two\nlines", "webhook_description_invalid"),
    ):
        with pytest.raises(Invalid) as refused:
            await hooks.create(url, events=events, description=description)
        assert refused.value.code == code
    made = [await hooks.create(receiver.url) for _ in range(3)]
    with pytest.raises((Conflict, Exception)) as full:
        await hooks.create(receiver.url)
    assert getattr(full.value, "code", "") == "too_many_webhooks"
    with pytest.raises(Invalid):
        await hooks.change(made[0].webhook.id, url="http://10.0.0.1/")
    for missing in (hooks.get("no"), hooks.delete("no"), hooks.rotate("no"), hooks.test("no"), hooks.deliveries("no")):
        with pytest.raises(NotFound) as unknown:
            await missing
        assert unknown.value.code == "webhook_not_found"
    with pytest.raises(NotFound) as unknown:
        await hooks.send_again(made[0].webhook.id, "no")
    assert unknown.value.code == "delivery_not_found"
    assert len(await hooks.all()) == 3


async def test_a_server_may_have_no_webhooks(place: Place, receiver: Receiver) -> None:
    async with place.serve(HOLDFAST_WEBHOOKS="off") as server, server.client() as client:
        refused = await client.post("/v1/webhooks", json={"url": receiver.url})
        assert (refused.status_code, code_of(refused)) == (403, "webhooks_off")
        assert (await client.get("/v1/webhooks")).json() == {"webhooks": []}


async def test_secrets_are_sealed_with_the_key_of_the_server_and_are_in_no_file_otherwise(
    place: Place, receiver: Receiver
) -> None:
    key = "a-key-that-nobody-guesses"
    async with place.serve(HOLDFAST_SECRET_KEY=key) as server, server.client() as client:
        made = await created(client, receiver)
        await told(client, made["webhook"]["id"])
        receiver.received[0].verified(made["secret"])
        listed = (await client.get("/v1/webhooks")).text + (await client.get("/v1/openapi.json")).text
        assert made["secret"] not in listed
    with closing(sqlite3.connect(place.data / "holdfast.db")) as db:
        ((secret, keeper),) = db.execute("SELECT secret, keeper FROM webhook").fetchall()
    raw = secret_bytes(made["secret"])
    assert raw not in secret
    assert keeper.startswith("key:")
    for file in place.data.rglob("*"):
        if file.is_file():
            assert raw not in file.read_bytes()
            assert made["secret"].encode() not in file.read_bytes()
    # Without the key nothing can be signed: the delivery waits for a process that has it.
    async with place.serve() as server, server.client() as client:
        sent = (await client.post(f"/v1/webhooks/{made['webhook']['id']}/test")).json()
    async with place.serve(HOLDFAST_SECRET_KEY=key) as server, server.client() as client:
        await received(client, made["webhook"]["id"], sent["id"])
        assert receiver.received[-1].verified(made["secret"]).id == sent["id"]


async def test_webhooks_on_the_command_line(place: Place, receiver: Receiver) -> None:
    made = await place.run("webhooks", "create", receiver.url, "--event", "turn.ended", "--description", "mine")
    assert (made.code, made.out.startswith("whsec_"), made.out.count("\n")) == (0, True, 1), made.err
    assert "not shown again" in made.err
    assert made.out.strip() not in made.err
    (line,) = (await place.run("webhooks", "list")).out.splitlines()
    webhook_id = line.split("  ")[0]
    assert line == f"{webhook_id}  active  {receiver.url}  turn.ended  mine"
    lonely = await place.run("webhooks", "test", webhook_id[:6])
    assert (lonely.code, "Is a server running?" in lonely.err) == (1, True)
    async with place.serve() as server, connect(server.url, server.token) as there:
        tested = await place.run("webhooks", "test", webhook_id[:6])
        assert (tested.code, tested.out) == (0, "The receiver accepted the test: status 204.\n"), tested.err
        await (await there.session()).run("good morning")
        await receiver.until(3)
        receiver.answers = lambda request: 418
        failed = await place.run("webhooks", "test", webhook_id)
        assert (failed.code, "status 418" in failed.err) == (1, True)
    listed = (await place.run("webhooks", "deliveries", webhook_id, "--json")).out.splitlines()
    assert [json.loads(line)["type"] for line in listed] == [
        "webhook.test", "turn.ended", "webhook.test", "webhook.test",
    ]  # fmt: skip
    shown = (await place.run("webhooks", "deliveries", webhook_id, "--state", "given_up")).out
    assert "given_up  1 attempt, status 418" in shown
    assert (await place.run("webhooks", "deliveries", webhook_id, "--state", "no")).code == 2
    again = await place.run("webhooks", "send", webhook_id, json.loads(listed[1])["id"][:8])
    assert (again.code, "is sent again" in again.out) == (0, True), again.err
    changed = await place.run("webhooks", "change", webhook_id, "--pause", "--to", "https://example.org/new")
    assert changed.out == f"{webhook_id}  paused  https://example.org/new  turn.ended  mine  1 pending\n"
    rotated = await place.run("webhooks", "rotate", webhook_id)
    assert (rotated.out.startswith("whsec_"), rotated.out == made.out) == (True, False)
    assert (await place.run("webhooks", "delete", webhook_id)).code == 0
    assert "There are no webhooks" in (await place.run("webhooks", "list")).out
    missing = await place.run("webhooks", "delete", webhook_id)
    assert (missing.code, "webhook" in missing.err) == (2, True)


def secret_bytes(text: str) -> bytes:

    return base64.b64decode(text.removeprefix("whsec_"))


async def created(client: Client, receiver: Receiver) -> Any:
    response = await client.post("/v1/webhooks", json={"url": receiver.url, "events": list(REPORTED_EVENTS)})
    assert response.status_code == 201, response.text
    return response.json()


async def told(client: Client, webhook_id: str) -> None:
    sent = (await client.post(f"/v1/webhooks/{webhook_id}/test")).json()
    await received(client, webhook_id, sent["id"])


async def received(client: Client, webhook_id: str, delivery_id: str) -> None:
    async with patience():
        while True:
            found = (await client.get(f"/v1/webhooks/{webhook_id}/deliveries/{delivery_id}")).json()
            if found["state"] != "pending":
                return
            await asyncio.sleep(0.01)
