"""Several turns with tools: each turn knows what the earlier ones did."""

import itertools

import pytest
from copilot import CopilotClient

from tests.wire.copilot.harness import (
    Home,
    Model,
    approving,
    calls,
    calls_all,
    client_tool,
    reply_to,
    says,
    texts_of,
    tool_results,
)

pytestmark = pytest.mark.anyio


async def test_should_use_tool_results_from_previous_turns(client: CopilotClient, home: Home, model: Model) -> None:
    (home.work / "secret.txt").write_text("The magic number is 42.", encoding="utf-8")
    model.on("Read secret.txt", calls("view", path="secret.txt"), says("It says 42."))
    model.on("Multiply it by two", says("84"))
    session = await client.create_session(**approving())
    assert "42" in await reply_to(session, "Read secret.txt")
    assert "84" in await reply_to(session, "Multiply it by two")
    (seen,) = tool_results(model.last_call_about("Multiply it by two"))
    assert "The magic number is 42." in seen


async def test_should_handle_file_creation_then_reading_across_turns(
    client: CopilotClient, home: Home, model: Model
) -> None:
    writes = calls("create", path="greeting.txt", file_text="Hello from turn one")
    model.on("Create greeting.txt", writes, says("Made."))
    model.on("Read greeting.txt", calls("view", path="greeting.txt"), says("{last_tool_result}"))
    session = await client.create_session(**approving())
    await reply_to(session, "Create greeting.txt")
    assert (home.work / "greeting.txt").read_text(encoding="utf-8") == "Hello from turn one"
    assert "Hello from turn one" in await reply_to(session, "Read greeting.txt")


async def test_several_rounds_of_tools_are_one_turn(client: CopilotClient, model: Model) -> None:
    rounds = [calls("count", value=str(number)) for number in range(5)]
    model.on("Count five times", *rounds, says("Counted."))
    tool = client_tool("count", lambda arguments: f"N{arguments['value']}")
    session = await client.create_session(**approving(tools=[tool]))
    assert await reply_to(session, "Count five times") == "Counted."
    assert tool_results(model.last_call_about("Count five times")) == [f"N{number}" for number in range(5)]


async def test_each_model_call_extends_the_previous_context(client: CopilotClient, model: Model) -> None:
    both = calls_all(("prefix", {"value": "a"}), ("prefix", {"value": "b"}), text="I look.")
    model.on("Prefix one", both, says("Found."))
    model.on("Prefix two", says("Again."))
    tool = client_tool("prefix", lambda arguments: arguments["value"])
    session = await client.create_session(**approving(tools=[tool]))
    await reply_to(session, "Prefix one")
    await reply_to(session, "Prefix two")
    sent = [call["messages"] for call in model.calls_about("Prefix one")]
    assert len(sent) == 3
    for earlier, later in itertools.pairwise(sent):
        assert later[: len(earlier)] == earlier


async def test_fifty_turns_are_remembered_in_order(client: CopilotClient, model: Model) -> None:
    model.on("Turn number", says("Noted."))
    session = await client.create_session(**approving())
    for number in range(50):
        await reply_to(session, f"Turn number {number}.")
    messages = model.last_call_about("Turn number 49.")["messages"]
    said = [texts_of(message).rsplit("\n", 1)[-1] for message in messages if message["role"] == "user"]
    assert said == [f"Turn number {number}." for number in range(50)]
