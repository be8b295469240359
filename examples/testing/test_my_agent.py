"""Tests of an agent: what it is asked and what its tools do is decided here, and no model is called.

Run them with `pytest examples/testing`.
"""

from pathlib import Path

import pytest

from holdfast import Runtime, tool
from holdfast.events.event import Event
from holdfast.events.message import UserMessage
from holdfast.testing import Failure, ModelServer, Reply, Rule, Script, ScriptedCall, ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@tool(permission="allow", after_crash="repeat")
def price(item: str) -> str:
    """The price of an item."""
    return {"apple": "3 coins"}.get(item, "unknown")


SCRIPT = Script(
    rules=(
        Rule(
            when="apple",
            replies=(
                Reply(tool_calls=(ScriptedCall("price", {"item": "apple"}),)),
                Reply(text="An apple costs {last_tool_result}."),
            ),
        ),
    )
)


async def test_the_agent_looks_the_price_up(tmp_path: Path) -> None:
    async with Runtime(database=tmp_path / "agent.db", model=ScriptedModel(SCRIPT), tools=[price]) as runtime:
        session = await runtime.session()
        turn = await session.run("What is an apple?")
        assert turn.text == "An apple costs 3 coins."


async def test_the_session_goes_on_in_another_process(tmp_path: Path) -> None:
    """Closing the runtime and opening another one stands for a deploy."""
    for number in (1, 2):
        async with Runtime(database=tmp_path / "agent.db", model=ScriptedModel(SCRIPT), tools=[price]) as runtime:
            session = await runtime.session("shop")
            assert (await session.run("An apple, please", message_id=f"m-{number}")).reason == "completed"
            log = [reading.body async for reading in session.events(follow=False) if isinstance(reading, Event)]
            assert sum(isinstance(body, UserMessage) for body in log) == number


async def test_a_provider_that_fails_once_is_asked_again(tmp_path: Path) -> None:
    """The same script over real HTTP, with a status of 503 before the first answer."""
    once = Script(rules=(Rule(replies=(Reply(text="Here I am.", fail=Failure(kind="unavailable", times=1)),)),))
    environ = {"HOLDFAST_MODEL_API_KEY": "any"}
    async with ModelServer(once) as server:
        environ["HOLDFAST_MODEL_BASE_URL"] = server.url
        async with Runtime(database=tmp_path / "agent.db", model="openai/scripted", environ=environ) as runtime:
            session = await runtime.session()
            assert (await session.run("Are you there?")).text == "Here I am."
