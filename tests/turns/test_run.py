"""`Session.run` returns the result of its own turn, however early the turn ends, and keeps nothing that it does not
read."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.live.local import LocalLive
from holdfast.models.scripted import Reply
from holdfast.protocol.message import Sent
from tests.faults.world import Gate, comes_true, patience, runtime_on, scripted, until_idle

pytestmark = pytest.mark.anyio


async def test_run_returns_the_result_of_a_turn_that_ended_before_its_receipt_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with patience(), runtime_on(tmp_path / "test.db", scripted(Reply(text="Hi."))) as runtime:
        session = await runtime.session("s")
        send = runtime.operations.send

        async def receipt_comes_late(*given: Any, **named: Any) -> Sent:
            sent = await send(*given, **named)
            await until_idle(session)
            return sent

        monkeypatch.setattr(runtime.operations, "send", receipt_comes_late)
        assert (await session.run("hello")).text == "Hi."


async def test_run_that_joins_a_turn_has_one_subscription_and_leaves_none(tmp_path: Path) -> None:
    model_waits = Gate()
    model = scripted(Reply(text="One."), Reply(text="Two."), gate=model_waits)
    async with patience(), runtime_on(tmp_path / "test.db", model) as runtime:
        session = await runtime.session("s")
        live = runtime._live
        assert isinstance(live, LocalLive)
        await session.send("first")
        await model_waits.reached.wait()
        joined = asyncio.create_task(session.run("second"))
        await comes_true(lambda: len(live._subscriptions.get(session.key, ())) == 1 and _is_read(live, session.key))
        model_waits.open()
        assert (await joined).reason == "completed"
        assert not live._subscriptions.get(session.key)


def _is_read(live: LocalLive, key: Any) -> bool:
    """Whether the reader of each subscription waits for the next hint."""
    return all(each._arrived is not None for each in live._subscriptions[key])
