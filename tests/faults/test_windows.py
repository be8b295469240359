"""A session driven over its model's window ten times, over each wire, at a server that really counts."""

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from holdfast.app import Runtime
from holdfast.events.compaction import CompactionEnded, CompactionStarted
from holdfast.events.message import CallFailed
from holdfast.events.session import SettingsChanged
from holdfast.models.anthropic_messages import AnthropicMessages
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel, ModelWire
from holdfast.models.info import UNKNOWN, ModelInfo
from holdfast.models.openai_responses import OpenAIResponses
from holdfast.models.scripted import Reply
from holdfast.models.server import ModelServer
from holdfast.server.embedded.session import Session
from holdfast.session.tokens import tokens_in
from tests.faults.world import bodies_of, endings_of, runtime_on, says

pytestmark = pytest.mark.anyio

WINDOW = 32_000
WINDOWS = 10
"""The person alone says so many windows full of text."""

KNOWN = ModelInfo(window=WINDOW, is_known=True)

WIRES: dict[str, Callable[[ModelInfo], ModelWire]] = {
    "messages": lambda info: AnthropicMessages("claude-opus-4-5", info),
    "responses": lambda info: OpenAIResponses("gpt-6", info),
    "chat": lambda info: ChatCompletions("m", info=info),
}

each_wire = pytest.mark.parametrize("wire", WIRES)


def words(number: int) -> str:
    """A message of about 6,000 tokens."""
    return f"Planted sentence {number}: the lamp on the stair is {number * 7} years old. " + "Please note it. " * 1_500


async def thinking_session(runtime: Runtime) -> Session:
    session = await runtime.session("long")
    await runtime.operations.record(session.key, SettingsChanged(thinking=16_000))
    return session


async def talk(session: Session) -> int:
    """Say ten windows of text, and return the number of messages. Every turn is answered."""
    said = 0
    for number in count():
        if said >= WINDOW * WINDOWS:
            return number
        turn = await session.run(words(number))
        assert (turn.reason, turn.text) == ("completed", "So be it."), f"message {number}: {turn}"
        said += tokens_in(words(number))
    raise AssertionError


def newest_said(body: bytes) -> int:
    """The number of the newest message of the person that a call carries."""
    return max(map(int, re.findall(rb"Planted sentence (\d+):", body)))


def is_summary(body: bytes) -> bool:
    return b'"tools"' not in body


def thinking_calls(server: ModelServer) -> list[bytes]:
    return [body for body in server.requests if b'"budget_tokens"' in body]


async def check(session: Session, server: ModelServer, turns: int) -> tuple[list[CallFailed], list[CompactionStarted]]:
    """No turn failed, and the message of each turn reached the model. Returns the refusals and the compactions."""
    assert await endings_of(session) == ["completed"] * turns
    assert {newest_said(body) for body in server.requests if not is_summary(body)} == set(range(turns))
    ended = await bodies_of(session, CompactionEnded)
    assert sum(body.success for body in ended) >= WINDOWS
    refused = await bodies_of(session, CallFailed)
    assert {body.error_code for body in refused} <= {"model_context_exceeded"}
    return refused, await bodies_of(session, CompactionStarted)


@each_wire
async def test_a_session_goes_ten_times_over_a_window_that_is_known(wire: str, database: Path) -> None:
    async with (
        ModelServer(says(Reply(text="So be it.")), window=WINDOW) as server,
        HttpModel(WIRES[wire](KNOWN), base_url=server.url, name="m", info=KNOWN) as model,
        runtime_on(database, model) as runtime,
    ):
        session = await thinking_session(runtime)
        refused, started = await check(session, server, await talk(session))
    assert Counter(body.trigger for body in started)["too_long"] == len(refused)
    if wire == "messages":
        # The budget with the answer's room would not fit into every context that compaction allows.
        assert {json.loads(body)["thinking"]["budget_tokens"] for body in thinking_calls(server)} >= {16_000, 8_000}


@each_wire
async def test_a_session_goes_ten_times_over_a_window_that_only_a_refusal_names(wire: str, database: Path) -> None:
    async with (
        ModelServer(says(Reply(text="So be it.")), window=WINDOW) as server,
        HttpModel(WIRES[wire](UNKNOWN), base_url=server.url, name="m") as model,
        runtime_on(database, model) as runtime,
    ):
        session = await thinking_session(runtime)
        refused, started = await check(session, server, await talk(session))
    assert [body.window for body in refused] == [WINDOW]
    # Messages refuse the very first call, for the answer that it leaves room for: nothing can be left out of that one.
    expected = 0 if wire == "messages" else 1
    assert Counter(body.trigger for body in started)["too_long"] == expected
