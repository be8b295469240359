"""Chat completion requests: the shape that providers expect, and a stable prefix of bytes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.chat_request import PLAIN, TOOL_IMAGES, MessageForm, encode_messages, encode_request
from holdfast.models.info import ModelInfo
from holdfast.models.model import (
    AssistantTurn,
    ContextMessage,
    ModelRequest,
    Reasoning,
    SystemText,
    ToolOutcome,
    ToolSpec,
    ToolUse,
    UserText,
)

any_text = st.text(alphabet=st.characters())
tool_uses = st.builds(ToolUse, any_text.map(ToolCallId), any_text, any_text)
messages: st.SearchStrategy[ContextMessage] = st.one_of(
    st.builds(SystemText, any_text),
    st.builds(UserText, any_text),
    st.builds(AssistantTurn, any_text, st.lists(tool_uses, max_size=3).map(tuple)),
    st.builds(ToolOutcome, any_text.map(ToolCallId), any_text),
)
images = st.lists(st.builds(Image, media_type=any_text, data=st.binary(max_size=5)), max_size=2).map(tuple)
outcomes = st.builds(ToolOutcome, any_text.map(ToolCallId), any_text, images)
exchanges: st.SearchStrategy[list[ContextMessage]] = st.builds(
    lambda said, answered, results: [said, answered, *results],
    st.builds(UserText, any_text, images),
    st.builds(AssistantTurn, any_text, st.lists(tool_uses, max_size=3).map(tuple)),
    st.lists(outcomes, max_size=3),
)
SOURCE = "route.test/chat/completions m"
MARKED = MessageForm(reasoning_source=SOURCE, takes_cache_marks=True)
MARK = b',"cache_control":{"type":"ephemeral"}'
PNG = Image(media_type="image/png", data=b"\x89PNG")
GIF = Image(media_type="image/gif", data=b"GIF8")


def sent(request: ModelRequest) -> Any:
    return json.loads(encode_request(request, model="gpt-x", max_tokens_field="max_tokens"))


@given(st.lists(messages, min_size=1, max_size=6), st.lists(messages, max_size=4))
def test_encoded_messages_are_prefix_stable(earlier: list[Any], later: list[Any]) -> None:
    assert encode_messages(earlier + later).startswith(encode_messages(earlier)[:-1])


@given(st.lists(exchanges, min_size=1, max_size=3), st.lists(exchanges, min_size=1, max_size=3))
def test_encoded_messages_with_images_are_prefix_stable_between_steps(earlier: list[Any], later: list[Any]) -> None:
    before = [message for exchange in earlier for message in exchange]
    after = [message for exchange in later for message in exchange]
    assert encode_messages(before + after).startswith(encode_messages(before)[:-1])


@given(st.lists(exchanges, min_size=1, max_size=3), st.lists(exchanges, min_size=1, max_size=3), st.data())
def test_messages_with_marks_are_prefix_stable_apart_from_the_marks(
    earlier: list[Any], later: list[Any], data: st.DataObject
) -> None:
    before = [message for exchange in earlier for message in exchange]
    after = [message for exchange in later for message in exchange]

    def encoded(conversation: list[Any]) -> bytes:
        marks = data.draw(st.sets(st.integers(0, len(conversation) - 1), max_size=3))
        body = encode_messages(conversation, MARKED, marks)
        assert body.count(MARK) <= len(marks)
        return body.replace(MARK, b"")

    assert encoded(before + after).startswith(encoded(before)[:-1])


def test_plain_call_has_unchanged_bytes() -> None:
    use = ToolUse(ToolCallId("c1"), "view", '{ "path" : "a"}')
    request = ModelRequest(
        messages=(
            SystemText("s"),
            UserText("u é\n"),
            AssistantTurn("", (use,)),
            ToolOutcome(ToolCallId("c1"), "r"),
            AssistantTurn("done"),
        ),
        tools=(ToolSpec("view", "Look.", {"type": "object"}),),
        max_tokens=9,
    )
    assert encode_request(request, model="gpt-x", max_tokens_field="max_tokens") == (
        b'{"model":"gpt-x","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"tools":[{"type":"function",'
        b'"function":{"name":"view","description":"Look.","parameters":{"type":"object"}}}],"messages":[{"role":"system",'
        b'"content":"s"},{"role":"user","content":"u \xc3\xa9\\n"},{"role":"assistant","content":null,"tool_calls":[{'
        b'"type":"function","id":"c1","function":{"name":"view","arguments":"{ \\"path\\" : \\"a\\"}"}}]},{'
        b'"role":"tool","tool_call_id":"c1","content":"r"},{"role":"assistant","content":"done"}]}'
    )


def test_headers_are_not_part_of_the_body() -> None:
    plain, with_headers = (ModelRequest(messages=(UserText("u"),), headers=h) for h in ({}, {"x-a": "b"}))
    assert sent(plain) == sent(with_headers)


def test_repr_hides_header_values() -> None:
    assert "hush" not in repr(ModelRequest(messages=(UserText("u"),), headers={"x-a": "hush"}))


def test_reasoning_effort_is_sent_if_set() -> None:
    assert sent(ModelRequest(messages=(UserText("u"),), reasoning_effort="high"))["reasoning_effort"] == "high"
    assert "reasoning_effort" not in sent(ModelRequest(messages=(UserText("u"),)))


def part(image: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image}}


@pytest.mark.parametrize(
    ("budget", "effort", "reasoning"),
    [
        (0, "none", {"enabled": False}),
        (1, "low", {"max_tokens": 1}),
        (4_000, "low", {"max_tokens": 4_000}),
        (4_001, "medium", {"max_tokens": 4_001}),
        (16_000, "medium", {"max_tokens": 16_000}),
        (16_001, "high", {"max_tokens": 16_001}),
    ],
)
def test_thinking_budget_is_sent_in_the_form_of_the_endpoint(budget: int, effort: str, reasoning: Any) -> None:
    request = ModelRequest(messages=(UserText("u"),), thinking=budget, reasoning_effort="xhigh")
    assert sent(request)["reasoning_effort"] == effort
    body = encode_request(request, model="m", max_tokens_field="max_tokens", thinking_field="reasoning")
    assert json.loads(body)["reasoning"] == reasoning
    assert b"reasoning_effort" not in body


def test_images_of_a_message_follow_its_text() -> None:
    assert json.loads(encode_messages([UserText("look", (PNG, GIF))])) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                part("data:image/png;base64,iVBORw=="),
                part("data:image/gif;base64,R0lGOA=="),
            ],
        }
    ]


def test_tool_images_follow_all_results_of_their_step_in_one_message() -> None:
    uses = tuple(ToolUse(ToolCallId(name), "view", "{}") for name in "abc")
    conversation = (
        AssistantTurn("", uses),
        ToolOutcome(ToolCallId("a"), "A", (PNG,)),
        ToolOutcome(ToolCallId("b"), "B"),
        ToolOutcome(ToolCallId("c"), "C", (GIF,)),
        UserText("and now?"),
    )
    written = json.loads(encode_messages(conversation))
    assert [message["role"] for message in written] == ["assistant", "tool", "tool", "tool", "user", "user"]
    assert [message["content"] for message in written[1:4]] == ["A", "B", "C"]
    assert written[4]["content"] == [
        {"type": "text", "text": TOOL_IMAGES},
        part("data:image/png;base64,iVBORw=="),
        part("data:image/gif;base64,R0lGOA=="),
    ]
    assert written[5]["content"] == "and now?"
    assert json.loads(encode_messages(conversation[:-1])) == written[:-1]


def test_each_role_has_the_shape_that_providers_expect() -> None:
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


def test_call_that_does_not_stream_has_no_stream_fields() -> None:
    assert sent(ModelRequest(messages=(UserText("u"),), stream=False)).keys() == {"model", "messages"}


def test_tools_and_token_limit_are_sent() -> None:
    tool = ToolSpec("view", "Look at a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
    body = sent(ModelRequest(messages=(UserText("u"),), tools=(tool,), max_tokens=100))
    assert body["max_tokens"] == 100
    assert body["tools"] == [
        {
            "type": "function",
            "function": {"name": "view", "description": "Look at a file.", "parameters": tool.parameters},
        }
    ]


def test_lone_surrogate_is_replaced() -> None:
    assert json.loads(encode_messages([UserText("a\ud83d")])) == [{"role": "user", "content": "a\ufffd"}]


DETAILS = [
    {"type": "reasoning.text", "text": "hm", "signature": "s==", "format": "anthropic-claude-v1", "index": 0},
    {"type": "reasoning.encrypted", "data": "x==", "id": "rs_1", "format": "openai-responses-v1", "index": 1},
]


def answered(kept: Any, *, source: str = SOURCE, calls: bool = True, ids: str = "c1") -> list[Any]:
    """An answer with this kept reasoning, and the result of its call, as they are sent again."""
    use = ToolUse(ToolCallId(ids), "view", "{}")
    turn = AssistantTurn("Look.", (use,) if calls else (), (Reasoning("hm", json.dumps(kept)),), source)
    conversation = (turn, ToolOutcome(ToolCallId(ids), "r")) if calls else (turn,)
    written: list[Any] = json.loads(encode_messages(conversation, MessageForm(reasoning_source=SOURCE)))
    return written


def test_reasoning_details_go_back_unmodified_to_their_source_only() -> None:
    kept = {"reasoning_details": DETAILS}
    assert answered(kept)[0]["reasoning_details"] == DETAILS
    assert answered(kept, calls=False)[0]["reasoning_details"] == DETAILS
    assert answered(kept, source="other")[0].keys() == {"role", "content", "tool_calls"}
    assert answered(kept, source="")[0].keys() == {"role", "content", "tool_calls"}


@pytest.mark.parametrize("content", ["hm", ""])
def test_reasoning_content_goes_back_with_tool_calls_only(content: str) -> None:
    kept = {"reasoning_content": content}
    assert answered(kept)[0]["reasoning_content"] == content
    assert "reasoning_content" not in answered(kept, calls=False)[0]
    assert "reasoning_content" not in answered(kept, source="other")[0]


@pytest.mark.parametrize("kept", [None, [], "x", {"reasoning_details": "x"}, {"signature": "s=="}])
def test_opaque_parts_of_another_form_are_left_out(kept: Any) -> None:
    assert answered(kept)[0].keys() == {"role", "content", "tool_calls"}


def test_odd_tool_call_ids_are_mapped_unless_their_own_provider_gave_them() -> None:
    odd = "call_1__thought__" + "x" * 100
    call, result = answered({}, ids=odd)
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert len(result["tool_call_id"]) <= 40
    call, result = answered({"keeps_ids": True}, ids=odd)
    assert (call["tool_calls"][0]["id"], result["tool_call_id"]) == (odd, odd)


def marked(messages: tuple[ContextMessage, ...], **settings: Any) -> list[Any]:
    """The texts that carry a mark."""
    wire = ChatCompletions("anthropic/m", info=ModelInfo(takes_cache_marks=True))
    body = json.loads(wire.encode(ModelRequest(messages=messages, **settings), reasoning_source=SOURCE))
    parts = [
        part for message in body["messages"] if isinstance(message["content"], list) for part in message["content"]
    ]
    return [part["text"] for part in parts if part.get("cache_control") == {"type": "ephemeral"}]


def test_system_text_anchor_and_newest_message_are_marked() -> None:
    use = ToolUse(ToolCallId("c1"), "view", "{}")
    conversation = (
        SystemText("s"),
        UserText("u", (PNG,)),
        AssistantTurn("", (use,)),
        ToolOutcome(ToolCallId("c1"), "r"),
    )
    assert marked(conversation) == ["s", "r"]
    assert marked(conversation, cache_anchor=1) == ["s", "u", "r"]
    assert marked(conversation, cache_anchor=2) == ["s", "u", "r"]
    assert marked(conversation, cache_anchor=99) == ["s", "r"]
    assert marked(conversation, marks_cache=False) == []
    assert marked((SystemText("s"),)) == ["s"]
    assert marked(()) == []


def test_mark_covers_the_images_of_a_message_and_of_tool_results() -> None:
    conversation = (UserText("look", (PNG,)), ToolOutcome(ToolCallId("c1"), "r", (GIF,)))
    written = json.loads(encode_messages(conversation, MARKED, (0, 1)))
    assert [[part["type"] for part in message["content"]] for message in written] == [
        ["image_url", "text"],
        ["text"],
        ["image_url", "text"],
    ]
    assert ["cache_control" in message["content"][-1] for message in written] == [True, False, True]


def test_empty_text_is_never_marked() -> None:
    assert marked((UserText("u"), AssistantTurn(""))) == ["u"]
    assert marked((UserText("", (PNG,)),)) == []


def test_nothing_is_marked_where_marks_are_not_taken() -> None:
    wire = ChatCompletions("m", info=ModelInfo())
    assert b"cache_control" not in wire.encode(ModelRequest(messages=(UserText("u"),)), reasoning_source=SOURCE)
    assert json.loads(encode_messages([UserText("u")], PLAIN)) == [{"role": "user", "content": "u"}]


def test_model_without_images_gets_a_line_that_says_so() -> None:
    form = MessageForm(takes_images=False)
    written = json.loads(
        encode_messages((UserText("look", (PNG,)), ToolOutcome(ToolCallId("c1"), "r", (PNG, GIF))), form)
    )
    assert [message["content"] for message in written] == [
        "look\n\n[1 image was left out: this model takes no images.]",
        "r\n\n[2 images were left out: this model takes no images.]",
    ]
