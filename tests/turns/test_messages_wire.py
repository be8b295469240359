"""Sessions with a model behind Anthropic's Messages: what the strict server sent as thinking comes back as it was."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime, tool
from holdfast.models.anthropic_messages import AnthropicMessages
from holdfast.models.http_model import HttpModel
from holdfast.models.info import ModelInfo
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from holdfast.models.server import ModelServer

pytestmark = pytest.mark.anyio


@tool(permission="allow")
async def look() -> str:
    """Look around."""
    return "seen"


CALL = ScriptedCall("look")
SCRIPT = Script(
    (
        Rule(
            (
                Reply(reasoning="First.", redacted="x", text="I look.", tool_calls=(CALL, CALL)),
                Reply(reasoning="Then.", tool_calls=(CALL,), more=(Reply(reasoning="And.", tool_calls=(CALL,)),)),
                Reply(reasoning="Now I know.", text="One two three.", pauses=(3, 5)),
            ),
        ),
    )
)


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: unmarked(part) for name, part in value.items() if name != "cache_control"}
    return [unmarked(part) for part in value] if isinstance(value, list) else value


async def test_conversation_goes_on_unchanged_in_another_process_as_its_provider_demands(tmp_path: Path) -> None:
    async with ModelServer(SCRIPT) as server:
        session_id = ""
        for number in range(3):
            wire = AnthropicMessages(model="claude-opus-4-5", info=ModelInfo(window=200_000, max_output=64_000))
            async with (
                HttpModel(wire, base_url=server.url, name="anthropic/claude-opus-4-5") as model,
                Runtime(database=tmp_path / "holdfast.db", model=model, tools=[look]) as runtime,
            ):
                session = runtime.open(session_id) if session_id else await runtime.session()
                session_id = session.id
                turn = await session.run(f"Look around, {number}")
                assert (turn.reason, turn.text) == ("completed", "One two three.")
        bodies = [json.loads(body) for body in server.requests]
        reads = [count.read for count in server.counts]
    calls = [body for body in bodies if body["messages"][-1]["role"] == "user"]
    assert len(calls) == 9
    for before, after in pairwise(calls):
        assert unmarked(after["messages"])[: len(before["messages"])] == unmarked(before["messages"])
    assert all(reads[1:])
    kinds = [part["type"] for message in calls[-1]["messages"] for part in message["content"]]
    assert (kinds.count("thinking"), kinds.count("redacted_thinking")) == (11, 3)
