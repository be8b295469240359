"""A provider that is down: the turn goes on with the fall-back model, and the log and its readers are told."""

import socket
from pathlib import Path

import pytest

from holdfast.app import Runtime
from holdfast.events.message import Usage
from holdfast.events.session import SessionInfo
from holdfast.events.turn import FellBack
from holdfast.models.scripted import Failure, Reply
from holdfast.models.server import ModelServer
from tests.faults.world import bodies_of, endings_of, says, settings

pytestmark = pytest.mark.anyio


def closed_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


async def test_a_turn_goes_on_with_the_fall_back_while_its_provider_is_down(database: Path) -> None:
    config = settings(
        database,
        model="openai/m",
        model_base_url=f"http://127.0.0.1:{closed_port()}/v1",
        model_fallback="demo",
        max_model_attempts=2,
    )
    async with Runtime(config=config) as runtime:
        session = await runtime.session("s")
        for number in (1, 2):
            assert (await session.run(f"Hello {number}")).reason == "completed"
        told = await bodies_of(session, FellBack)
        assert [(body.from_model, body.to_model, body.error_code) for body in told] == [
            ("openai/m", "demo", "model_unreachable")
        ] * 2
        lines = [body.message for body in await bodies_of(session, SessionInfo) if body.info_type == "model_fallback"]
        assert len(lines) == 2
        assert lines[0].endswith("The rest of this turn uses demo.")
        assert {body.model for body in await bodies_of(session, Usage)} == {"demo"}


async def test_a_provider_that_refuses_is_not_replaced(database: Path) -> None:
    async with ModelServer(says(Reply(fail=Failure(kind="refused")))) as server:
        config = settings(database, model="openai/m", model_base_url=server.url, model_fallback="demo")
        async with Runtime(config=config) as runtime:
            session = await runtime.session("s")
            assert (await session.run("Hello")).reason == "error"
            assert await bodies_of(session, FellBack) == []
            assert await endings_of(session) == ["error"]
