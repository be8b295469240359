"""Whole sessions over each wire against the strict server: reasoning survives the log, a restart and a follow-up."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Runtime
from holdfast.models.anthropic_messages import AnthropicMessages
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel, ModelWire
from holdfast.models.openai_responses import OpenAIResponses
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from holdfast.models.server import ModelServer
from holdfast.tools.tool import tool

pytestmark = pytest.mark.anyio

STEPS = 3
SCRIPT = Script(
    (
        Rule(
            (
                *(
                    Reply(
                        reasoning=f"Thought {n}. ",
                        redacted="hidden",
                        text=f"Step {n}.",
                        tool_calls=(ScriptedCall("look", {"at": str(n)}),),
                        more=(Reply(reasoning="And? ", tool_calls=(ScriptedCall("look", {"at": "more"}),)),),
                    )
                    for n in range(STEPS)
                ),
                Reply(reasoning="Enough. ", text="Done."),
            )
        ),
    )
)


@tool(permission="allow", after_crash="repeat")
def look(at: str) -> str:
    """Looks at something."""
    return f"It is at {at}."


def listed(body: bytes) -> list[Any]:
    call = json.loads(body)
    found: list[Any] = call.get("input") or call["messages"]
    return found


def reasoning_in(body: bytes) -> int:
    """The number of pieces of reasoning that a call carries back."""
    kinds = ("reasoning.text", "reasoning.encrypted", "reasoning", "thinking", "redacted_thinking")
    return sum(body.count(b'"type":"%b"' % kind.encode()) for kind in kinds)


@pytest.mark.parametrize(
    "wire", [OpenAIResponses("gpt-6"), ChatCompletions("m"), AnthropicMessages("claude-opus-4-5")], ids=lambda w: w.path
)
async def test_reasoning_goes_back_over_steps_a_restart_and_a_follow_up(wire: ModelWire, tmp_path: Path) -> None:
    environ = {"HOLDFAST_THINKING": "2000", "HOLDFAST_TITLES": "words"}
    async with ModelServer(SCRIPT) as server:
        session_id = None
        for said in ("hello", "hello again"):
            async with (
                HttpModel(wire, base_url=server.url, name="m") as model,
                Runtime(database=tmp_path / "s.db", model=model, tools=[look], environ=environ) as runtime,
            ):
                session = await runtime.session(session_id)
                session_id = session.id
                turn = await session.run(said)
                assert (turn.reason, turn.text) == ("completed", "Done.")
        bodies = list(server.requests)
    # No call was refused, and so none was made twice.
    assert len(bodies) == 2 * (STEPS + 1)
    pieces = [reasoning_in(body) for body in bodies]
    assert pieces[: STEPS + 1] == [0, 3, 6, 9]
    if not isinstance(wire, AnthropicMessages):
        assert pieces[STEPS + 1 :] == [10, 13, 16, 19]
        for before, after in pairwise(bodies):
            assert listed(after)[: len(listed(before))] == listed(before)
