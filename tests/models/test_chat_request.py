"""What is sent: the shape that providers know, and bytes that never change once they were sent."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.ids import ToolCallId
from holdfast.models.chat_request import encode_request
from holdfast.models.model import (
    AssistantTurn,
    ContextMessage,
    ModelRequest,
    SystemText,
    ToolOutcome,
    ToolSpec,
    ToolUse,
    UserText,
)
from holdfast.models.openai_compatible import encode_messages

any_text = st.text(alphabet=st.characters())
tool_uses = st.builds(ToolUse, any_text.map(ToolCallId), any_text, any_text)
messages: st.SearchStrategy[ContextMessage] = st.one_of(
    st.builds(SystemText, any_text),
    st.builds(UserText, any_text),
    st.builds(AssistantTurn, any_text, st.lists(tool_uses, max_size=3).map(tuple)),
    st.builds(ToolOutcome, any_text.map(ToolCallId), any_text),
)


def sent(request: ModelRequest) -> Any:
    return json.loads(encode_request(request, model="gpt-x", max_tokens_field="max_tokens"))


@given(st.lists(messages, min_size=1, max_size=6), st.lists(messages, max_size=4))
def test_what_was_sent_is_the_beginning_of_what_is_sent_next(earlier: list[Any], later: list[Any]) -> None:
    assert encode_messages(earlier + later).startswith(encode_messages(earlier)[:-1])


def test_each_role_is_written_as_providers_know_it() -> None:
    use = ToolUse(ToolCallId("c1"), "view", '{ "path" : "a"}')
    conversation = (SystemText("s"), UserText("u"), AssistantTurn("", (use,)), ToolOutcome(ToolCallId("c1"), "r"))
    call = {"type": "function", "id": "c1", "function": {"name": "view", "arguments": '{ "path" : "a"}'}}
    assert json.loads(encode_messages((*conversation, AssistantTurn("done")))) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": "done"},
    ]


def test_a_streaming_call_asks_for_usage() -> None:
    body = sent(ModelRequest(messages=(UserText("u"),)))
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert {"tools", "max_tokens"} & body.keys() == set()


def test_a_call_that_does_not_stream_says_nothing_about_streaming() -> None:
    assert sent(ModelRequest(messages=(UserText("u"),), stream=False)).keys() == {"model", "messages"}


def test_tools_and_the_bound_on_tokens_are_sent() -> None:
    tool = ToolSpec("view", "Look at a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
    body = sent(ModelRequest(messages=(UserText("u"),), tools=(tool,), max_tokens=100))
    assert body["max_tokens"] == 100
    assert body["tools"] == [
        {
            "type": "function",
            "function": {"name": "view", "description": "Look at a file.", "parameters": tool.parameters},
        }
    ]


def test_half_a_character_is_replaced_and_not_fatal() -> None:
    assert json.loads(encode_messages([UserText("a\ud83d")])) == [{"role": "user", "content": "a\ufffd"}]
