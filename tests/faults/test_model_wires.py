"""A long session over each wire, at the real `holdfast model-server`: thinking, tools, kill -9, takeover, follow-ups.
The official clients then read the same server, unmodified: it imitates what they know."""

import asyncio
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from holdfast.events.message import AssistantMessage, CallFailed, ReasoningBlock
from holdfast.events.session import SettingsChanged
from holdfast.events.tool import ToolCompleted
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from tests.faults.processes import child_on, journal_of
from tests.faults.world import bodies_of, endings_of, patience, runtime_on

pytestmark = pytest.mark.anyio

STEPS = 30
KILLED_AT = 15
WORK = "Oil the lamps"
FOLLOW_UPS = ("Are they lit?", "And now?")


def script() -> Script:
    calls = [ScriptedCall("note", {"line": f"lamp {number}"}) for number in range(STEPS)]
    calls[KILLED_AT] = ScriptedCall("hold_again", {"name": "stair"})
    steps = [
        Reply(reasoning=f"Lamp {number} is next. ", redacted="hidden", text="I look.", tool_calls=(call,))
        for number, call in enumerate(calls)
    ]
    end = Reply(reasoning="That was the last one. ", text="All of them burn.")
    return Script((Rule((*steps, end), when=WORK), Rule((*steps[:2], end))))


@asynccontextmanager
async def model_server(folder: Path) -> AsyncIterator[str]:
    """`holdfast model-server` as people start it; its base URL."""
    file = folder / "script.json"
    file.write_bytes(msgspec.json.encode(script()))
    command = (sys.executable, "-m", "holdfast", "model-server", "--script", str(file))
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE)
    try:
        assert process.stdout is not None
        async with patience():
            found = re.search(rb"http://\S+", await process.stdout.readline())
        assert found is not None
        yield found[0].decode()
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()


async def read_messages(url: str) -> list[str]:
    """What Anthropic's client gets: a step, and after its result the next one. The kinds of blocks of both."""
    tool: Any = {"name": "note", "input_schema": {"type": "object"}}
    options: Any = {"model": "claude-opus-4-5", "max_tokens": 4096, "tools": [tool]}
    options["thinking"] = {"type": "enabled", "budget_tokens": 2000}
    said: list[Any] = [{"role": "user", "content": WORK}]
    kinds: list[str] = []
    async with anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="k", max_retries=0) as client:
        for _ in range(2):
            async with client.messages.stream(messages=said, **options) as stream:
                answer = await stream.get_final_message()
            kinds += [block.type for block in answer.content]
            result = {"type": "tool_result", "tool_use_id": getattr(answer.content[-1], "id", ""), "content": "noted"}
            said += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    return kinds


async def read_responses(url: str) -> list[str]:
    """The same by OpenAI's client, in Responses."""
    tool: Any = {"type": "function", "name": "note", "parameters": {"type": "object"}, "strict": False}
    options: Any = {"model": "gpt-6", "store": False, "tools": [tool], "include": ["reasoning.encrypted_content"]}
    said: list[Any] = [{"role": "user", "content": WORK}]
    kinds: list[str] = []
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        for _ in range(2):
            async with client.responses.stream(input=said, **options) as stream:
                answer = await stream.get_final_response()
            kinds += [item.type for item in answer.output]
            said += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
            call_id = getattr(answer.output[-1], "call_id", "")
            said.append({"type": "function_call_output", "call_id": call_id, "output": "noted"})
    return kinds


async def read_chat(url: str) -> list[str]:
    """The same by OpenAI's client, in chat completions."""
    tool: Any = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}
    said: list[Any] = [{"role": "user", "content": WORK}]
    kinds: list[str] = []
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        for _ in range(2):
            answer = await client.chat.completions.create(model="m", messages=said, tools=[tool])
            message = answer.choices[0].message
            assert message.tool_calls is not None
            kinds += [call.type for call in message.tool_calls]
            call_id = message.tool_calls[0].id
            said += [message.model_dump(exclude_none=True)]
            said += [{"role": "tool", "tool_call_id": call_id, "content": "noted"}]
    return kinds


Read = Callable[[str], Awaitable[list[str]]]


@pytest.mark.parametrize(
    ("model", "wire", "read", "step"),
    [
        ("anthropic/claude-opus-4-5", "messages", read_messages, ["thinking", "redacted_thinking", "text", "tool_use"]),
        ("openai/gpt-6", "responses", read_responses, ["reasoning", "reasoning", "message", "function_call"]),
        ("openai/m", "chat", read_chat, ["function"]),
    ],
    ids=["messages", "responses", "chat"],
)
async def test_a_long_session_is_killed_taken_over_and_followed_up_without_a_refused_call(
    model: str, wire: str, read: Read, step: list[str], tmp_path: Path
) -> None:
    database = tmp_path / "holdfast.db"
    async with model_server(tmp_path) as url:
        settings: dict[str, Any] = {"model": model, "model_base_url": url, "model_wire": wire, "model_api_key": "k"}
        async with child_on(database, holds=["tool:stair"], **settings) as first:
            await first.ask("create", session="long")
            async with runtime_on(database, work=False) as runtime:
                await runtime.operations.record(runtime.open("long").key, SettingsChanged(thinking=2_000))
            await first.ask("send", session="long", text=WORK, message_id="work")
            await first.comes_to("tool:stair")
            await first.kill()
        async with child_on(database, **settings) as second:
            results = [await second.ask("result", session="long", message_id="work")]
            for number, text in enumerate(FOLLOW_UPS):
                await second.ask("send", session="long", text=text, message_id=f"follow-up-{number}")
                results.append(await second.ask("result", session="long", message_id=f"follow-up-{number}"))
            await second.end()
        assert [(result["reason"], result["text"]) for result in results] == [("completed", "All of them burn.")] * 3
        kinds = await read(url)
    assert [kind for kind in kinds if kind in step] == step * 2
    async with runtime_on(database, work=False) as runtime:
        session = runtime.open("long")
        assert await endings_of(session) == ["completed"] * 3
        assert await bodies_of(session, CallFailed) == []
        answers = await bodies_of(session, AssistantMessage)
        assert len(answers) == STEPS + 1 + 2 * 3
        assert all(any(isinstance(block, ReasoningBlock) for block in answer.blocks) for answer in answers)
        assert all(body.success for body in await bodies_of(session, ToolCompleted))
    assert sum(line.endswith(" stair") for line in journal_of(database)) == 2, "begun before the kill and after it"
