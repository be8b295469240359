"""Sessions with secrets of their clients run in the process that has them, or in one with the sealing key."""

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.config import load
from holdfast.events.event import Event
from holdfast.events.ids import Key, MessageId, Owner
from holdfast.events.message import CallFailed
from holdfast.events.session import Provider, SettingsChanged
from holdfast.events.turn import TurnEnded
from holdfast.live.local import LocalLive
from holdfast.models.choice import ModelChoice
from holdfast.models.credentials import Credentials, ProviderSecrets, Secrets
from holdfast.models.model import Model
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.models.server import ModelServer
from holdfast.models.session_models import SessionModels
from holdfast.server.operations import Operations, SessionOptions
from holdfast.session.bounds import Bounds
from holdfast.store.clock import SystemClock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Lease, ReleaseKind
from holdfast.tools.registry import Registry
from holdfast.workers.pace import Pace
from holdfast.workers.worker import Worker
from tests.models.raw_server import RawServer, http

pytestmark = pytest.mark.anyio

SECRET_KEY = "a key that is long enough".replace(" ", "-")
SCRIPT = Script(
    (
        Rule(
            (Reply(text="Let me see.", tool_calls=(ScriptedCall("view", {"path": "x"}),)), Reply(text="Seen.")), "look"
        ),
        Rule((Reply(text="Hello."),)),
    )
)


def brought(url: str, **more: Any) -> SettingsChanged:
    return SettingsChanged(provider=Provider(base_url=url, has_secrets=True), **more)


def given(url: str, api_key: str = "their-key") -> Secrets:
    return Secrets(providers={url: ProviderSecrets(api_key=api_key)})


def runtime(folder: Path, *, secret_key: str = "", **options: Any) -> Runtime:
    environ = {"HOME": str(folder), "HOLDFAST_DATA_DIR": str(folder), "HOLDFAST_SECRET_KEY": secret_key}
    return Runtime(config=load({}, environ), environ=environ, **options)


async def test_a_session_is_answered_by_its_own_provider(tmp_path: Path) -> None:
    async with ModelServer(SCRIPT, api_key="their-key") as server, runtime(tmp_path) as here:
        settings = brought(server.url, reasoning_effort="high", stream=False)
        session = await here.create(SessionOptions(model="gpt-x", settings=settings), "s")
        assert await here.credentials.put(session.key, given(server.url))
        assert (await session.run("hello")).text == "Hello."
        body = json.loads(server.requests[0])
        assert (body["model"], body["reasoning_effort"], "stream" in body) == ("gpt-x", "high", False)


async def test_a_provider_error_keeps_its_status_and_never_shows_the_key(tmp_path: Path) -> None:
    refusal = http(b'{"error":{"message":"their-key is no good"}}', status="402 Pay", content_type="application/json")
    async with RawServer([refusal]) as server, runtime(tmp_path) as here:
        session = await here.create(SessionOptions(model="gpt-x", settings=brought(server.url)), "s")
        await here.credentials.put(session.key, given(server.url))
        turn = await session.run("hello")
        assert turn.reason == "error"
        assert turn.error is not None
        assert "[redacted] is no good" in turn.error.message
        bodies = [found.body async for found in session.events(follow=False) if isinstance(found, Event)]
        assert [body.status_code for body in bodies if isinstance(body, CallFailed)] == [402]
    with contextlib.closing(sqlite3.connect(tmp_path / "holdfast.db")) as db:
        (events,) = db.execute("SELECT group_concat(CAST(data AS TEXT)) FROM event").fetchone()
    assert "[redacted]" in events
    assert "their-key" not in events


async def test_a_provider_may_speak_anthropics_protocol(tmp_path: Path) -> None:
    async with ModelServer(SCRIPT) as server, runtime(tmp_path) as here:
        brought = Provider(base_url=server.url.removesuffix("/v1"), type="anthropic")
        session = await here.session("s", model="claude-x")
        await here.operations.record(session.key, SettingsChanged(provider=brought))
        assert (await session.run("hello")).reason == "completed"
        assert server.headers[0]["anthropic-version"]


# Headers of single messages


async def test_headers_are_sent_with_every_model_call_of_their_turn_and_no_other(tmp_path: Path) -> None:
    async with ModelServer(SCRIPT) as server, runtime(tmp_path) as here:
        settings = SettingsChanged(provider=Provider(base_url=server.url))
        session = await here.create(SessionOptions(model="gpt-x", settings=settings), "s")
        here.credentials.add_headers(session.key, MessageId("m1"), {"X-Trace": "one"})
        here.credentials.add_headers(session.key, MessageId("m3"), {"X-Trace": "three"})
        for number, text in enumerate(("look", "hello", "hello again"), 1):
            assert (await session.run(text, message_id=f"m{number}")).reason == "completed"
        assert [sent.get("x-trace") for sent in server.headers] == ["one", "one", None, "three"]
    assert here.credentials.headers(session.key, [MessageId("m1"), MessageId("m3")]) == {}, "nothing is left of them"


# Processes that may run it


class Released(SqliteStore):
    """The real store, which signals when a session is released."""

    async def release(self, lease: Lease, *, seen_tail: int, how: ReleaseKind) -> bool:
        released = await super().release(lease, seen_tail=seen_tail, how=how)
        await self.given_back.put(lease.key)
        return released

    given_back: "asyncio.Queue[Key]"


@asynccontextmanager
async def working(path: Path) -> AsyncIterator[tuple[Released, Operations, Credentials]]:
    """A worker that claims only on a wake-up."""
    clock, live = SystemClock(), LocalLive()
    store = await Released.open(path, node="here")
    store.given_back = asyncio.Queue()
    credentials = Credentials(store, wake=live.announce)
    models = SessionModels(default="demo", environ={})

    async def choose(choice: ModelChoice) -> Model:
        return await models.model(choice, credentials)

    worker = Worker(
        store=store,
        live=live,
        clock=clock,
        bounds=Bounds(),
        pace=Pace(claim_every_seconds=3600, listen_every_seconds=3600),
        node="here",
        registry=Registry(),
        models=choose,
        credentials=credentials,
    )
    operations = Operations(
        store=store, live=live, clock=clock, bounds=Bounds(), node="here", host=None, producer="a test"
    )
    try:
        async with worker, asyncio.timeout(30):
            yield store, operations, credentials
    finally:
        await models.close()
        await store.close()


async def turn_ends(operations: Operations, key: Key) -> None:
    async for reading in operations.read(key).follow():
        if isinstance(reading, Event) and isinstance(reading.body, TurnEnded):
            return


async def test_a_session_without_its_secrets_is_tried_once_and_runs_as_soon_as_they_are_given(
    tmp_path: Path,
) -> None:
    owner = Owner("ann")
    async with ModelServer(SCRIPT, api_key="their-key") as server, working(tmp_path / "h.db") as parts:
        store, operations, credentials = parts
        options = SessionOptions(model="gpt-x", settings=brought(server.url))
        key = Key(owner, await operations.create(owner, options))
        await operations.send(key, "hello")
        assert await store.given_back.get() == key
        first = await store.tails([key])
        for _ in range(5):  # Each of these makes the worker claim again.
            other = Key(
                owner,
                await operations.create(
                    owner,
                    SessionOptions(
                        settings=SettingsChanged(provider=Provider(base_url="http://127.0.0.1:9/v1", type="anthropic"))
                    ),
                ),
            )
            await operations.send(other, "hello")
            await turn_ends(operations, other)
        assert await store.tails([key]) == first, "it was claimed once"
        await credentials.put(key, given(server.url))
        await turn_ends(operations, key)
        assert len(server.requests) == 1


async def test_a_session_whose_secrets_are_in_another_process_is_not_claimed(tmp_path: Path) -> None:
    async with ModelServer(SCRIPT) as server, runtime(tmp_path, work=False) as giver:
        session = await giver.create(SessionOptions(model="gpt-x", settings=brought(server.url)), "s")
        await giver.credentials.put(session.key, given(server.url))
        await session.send("hello")
        async with runtime(tmp_path, model=ScriptedModel(SCRIPT)) as other:
            assert (await (await other.session("of-its-own")).run("hello")).reason == "completed"
            assert (await other.store.tails([session.key]))[session.key][0] == 0
            # A client resumes it there.
            await other.credentials.put(session.key, given(server.url, "newer-key"))
            await turn_ends(other.operations, session.key)
        assert [sent["authorization"] for sent in server.headers] == ["Bearer newer-key"]


async def test_another_process_with_the_key_runs_a_session_whose_secrets_are_sealed(tmp_path: Path) -> None:
    async with ModelServer(SCRIPT, api_key="their-key") as server:
        async with runtime(tmp_path, secret_key=SECRET_KEY, work=False) as giver:
            session = await giver.create(SessionOptions(model="gpt-x", settings=brought(server.url)), "s")
            await giver.credentials.put(session.key, given(server.url))
            sent = await session.send("hello")
        async with runtime(tmp_path, secret_key=SECRET_KEY[::-1], model=ScriptedModel(SCRIPT)) as stranger:
            assert (await (await stranger.session("of-its-own")).run("hello")).reason == "completed"
            assert (await stranger.store.tails([session.key]))[session.key][0] == 0
        async with runtime(tmp_path, secret_key=SECRET_KEY) as other:
            assert (await other.open("s").result_of(sent.message_id)).text == "Hello."
            await other.operations.delete(session.key)
            assert await other.store.secret(session.key) is None


async def test_a_sealing_key_needs_the_cryptography_package(tmp_path: Path) -> None:
    program = (
        "import sys, asyncio; sys.modules['cryptography'] = None\n"
        "from holdfast import Runtime\n"
        "from holdfast.cli.errors import report\n"
        "async def main():\n"
        "    async with Runtime(): pass\n"
        "try: asyncio.run(main())\n"
        "except Exception as error: sys.exit(report(error))\n"
    )
    environ = {"HOME": str(tmp_path), "HOLDFAST_DATA_DIR": str(tmp_path / "data"), "HOLDFAST_SECRET_KEY": SECRET_KEY}
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'holdfast[secrets]'" in done.stderr
    assert SECRET_KEY not in done.stderr
    assert not (tmp_path / "data").exists()
