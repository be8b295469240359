"""Calls of OpenAI's Responses: the shape that the provider expects, reasoning at its place, and a stable prefix."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
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
from holdfast.models.openai_responses import OpenAIResponses
from holdfast.models.responses_request import encode_items

SOURCE = "api.test/responses m"
PNG = Image(media_type="image/png", data=b"\x89PNG")
USE = ToolUse(ToolCallId("call_1"), "view", '{ "path" : "a"}')


def opaque(name: str) -> str:
    return f'{{"id":"{name}", "type":"reasoning","summary":[],"encrypted_content":"{name}=="}}'


any_text = st.text(alphabet=st.characters())
tool_uses = st.builds(ToolUse, any_text.map(ToolCallId), any_text, any_text)
opaques = st.one_of(any_text, st.sampled_from([opaque("rs_1"), '{"type":"message","phase":"final_answer"}', "{}"]))
thoughts = st.builds(Reasoning, any_text, opaques, st.integers(0, 5), st.integers(0, 3))
images = st.lists(st.builds(Image, media_type=any_text, data=st.binary(max_size=5)), max_size=2).map(tuple)
messages: st.SearchStrategy[ContextMessage] = st.one_of(
    st.builds(SystemText, any_text),
    st.builds(UserText, any_text, images),
    st.builds(
        AssistantTurn,
        any_text,
        st.lists(tool_uses, max_size=3).map(tuple),
        st.lists(thoughts, max_size=3).map(tuple),
        st.sampled_from([SOURCE, "other"]),
    ),
    st.builds(ToolOutcome, any_text.map(ToolCallId), any_text, images),
)


def items(*conversation: ContextMessage, source: str = SOURCE) -> Any:
    return json.loads(encode_items(conversation, reasoning_source=source))


def sent(request: ModelRequest, model: str = "gpt-6", **info: Any) -> Any:
    return json.loads(OpenAIResponses(model, ModelInfo(**info)).encode(request, reasoning_source=SOURCE))


def asking(**settings: Any) -> ModelRequest:
    return ModelRequest(messages=(UserText("u"),), **settings)


@given(st.lists(messages, max_size=6), st.lists(messages, max_size=4), st.booleans())
def test_encoded_items_are_prefix_stable(earlier: list[Any], later: list[Any], takes_images: bool) -> None:
    def encoded(conversation: list[Any]) -> bytes:
        return encode_items(conversation, reasoning_source=SOURCE, takes_images=takes_images)

    before = encoded(earlier)[:-1]
    assert encoded(earlier + later).startswith(before)
    assert json.loads(encoded(earlier + later))[: len(json.loads(before + b"]"))] == json.loads(before + b"]")


@given(st.lists(messages, max_size=8))
def test_only_reasoning_that_an_item_of_its_answer_follows_is_sent(conversation: list[Any]) -> None:
    kinds = [item["type"] for item in items(*conversation)]
    answers = {"message", "function_call", "reasoning"}
    follows = {following for kind, following in zip(kinds, [*kinds, None][1:], strict=True) if kind == "reasoning"}
    assert follows <= answers


def test_call_has_unchanged_bytes() -> None:
    thought = Reasoning("hm", opaque("rs_1"))
    request = ModelRequest(
        messages=(
            SystemText("s"),
            UserText("u é\n"),
            AssistantTurn("", (USE,), (thought,), SOURCE),
            ToolOutcome(ToolCallId("call_1"), "r"),
            AssistantTurn("done"),
        ),
        tools=(ToolSpec("view", "Look.", {"type": "object"}),),
        max_tokens=99,
        cache_key="c",
    )
    assert OpenAIResponses("gpt-6").encode(request, reasoning_source=SOURCE) == (
        b'{"model":"gpt-6","store":false,"stream":true,"max_output_tokens":99,"include":["reasoning.encrypted_content"],'
        b'"reasoning":{"summary":"auto"},"prompt_cache_key":"c","tools":[{"type":"function","name":"view",'
        b'"description":"Look.","parameters":{"type":"object"},"strict":false}],"input":['
        b'{"type":"message","role":"system","content":"s"},{"type":"message","role":"user","content":"u \xc3\xa9\\n"},'
        b'{"id":"rs_1", "type":"reasoning","summary":[],"encrypted_content":"rs_1=="},'
        b'{"type":"function_call","call_id":"call_1","name":"view","arguments":"{ \\"path\\" : \\"a\\"}"},'
        b'{"type":"function_call_output","call_id":"call_1","output":"r"},'
        b'{"type":"message","role":"assistant","content":"done"}]}'
    )


def test_reasoning_stands_at_its_place_among_text_and_calls() -> None:
    other = ToolUse(ToolCallId("call_2"), "list", "{}")
    pieces = (
        Reasoning("", opaque("rs_1")),
        Reasoning("", opaque("rs_2")),
        Reasoning("", '{"type":"message","phase":"commentary"}'),
        Reasoning("", opaque("rs_3"), text_before=5),
        Reasoning("", opaque("rs_4"), text_before=10, calls_before=1),
    )
    written = items(AssistantTurn("Look.More.", (USE, other), pieces, SOURCE))
    assert [item.get("id") or item.get("content") or item.get("call_id") for item in written] == [
        *("rs_1", "rs_2", "Look.", "rs_3", "More.", "call_1", "rs_4", "call_2")
    ]
    assert written[2]["phase"] == "commentary"
    assert "phase" not in written[4]


def test_foreign_reasoning_is_left_out() -> None:
    pieces = (Reasoning("hm", opaque("rs_1")), Reasoning("", '{"type":"message","phase":"commentary"}'))
    turn = AssistantTurn("a", (USE,), pieces, SOURCE)
    assert [item["type"] for item in items(turn)] == ["reasoning", "message", "function_call"]
    assert items(turn, source="api.test/responses other") == [
        {"type": "message", "role": "assistant", "content": "a"},
        {"type": "function_call", "call_id": "call_1", "name": "view", "arguments": '{ "path" : "a"}'},
    ]


def test_reasoning_that_nothing_follows_is_left_out() -> None:
    assert items(AssistantTurn("", (), (Reasoning("hm", opaque("rs_1")),), SOURCE)) == []
    cut = AssistantTurn("a", (), (Reasoning("hm", opaque("rs_1"), text_before=1),), SOURCE)
    assert [item["type"] for item in items(cut)] == ["message"]


def test_images_follow_the_text_of_a_message_and_of_a_tool_result() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw==", "detail": "auto"}
    written = items(UserText("look", (PNG,)), ToolOutcome(ToolCallId("call_1"), "", (PNG, PNG)))
    assert written[0]["content"] == [{"type": "input_text", "text": "look"}, picture]
    assert written[1]["output"] == [picture, picture]


def test_image_that_the_provider_does_not_take_is_left_out_with_a_line_that_says_so() -> None:
    drawing, nothing = Image(media_type="image/svg+xml", data=b"<svg/>"), Image(media_type="image/png", data=b"")
    written = items(UserText("look", (drawing, nothing)))[0]["content"]
    assert [part["type"] for part in written] == ["input_text"] * 3
    assert written[1]["text"] == "[An image of the type image/svg+xml was left out: this model does not take it.]"


def test_model_without_images_gets_a_line_that_says_so() -> None:
    conversation = (UserText("look", (PNG,)), ToolOutcome(ToolCallId("call_1"), "", (PNG, PNG)))
    body = sent(ModelRequest(messages=conversation), takes_images=False)
    assert body["input"][0]["content"] == "look\n\n[1 image was left out: this model takes no images.]"
    assert body["input"][1]["output"] == "[2 images were left out: this model takes no images.]"


def test_ids_of_other_providers_are_mapped_and_stay_paired() -> None:
    odd = ToolUse(ToolCallId("functions.view:0"), "view", "{}")
    written = items(AssistantTurn("", (odd,)), ToolOutcome(ToolCallId("functions.view:0"), "r"))
    assert written[0]["call_id"] == written[1]["call_id"]
    assert written[0]["call_id"].startswith("call_")


def test_call_by_an_impossible_name_is_sent_by_a_possible_one() -> None:
    uses = tuple(ToolUse(ToolCallId(str(n)), name, "{}") for n, name in enumerate(("a.b c", "", "n" * 70, "ok-1_A")))
    assert [item["name"] for item in items(AssistantTurn("", uses))] == ["a_b_c", "unnamed", "n" * 64, "ok-1_A"]


@pytest.mark.parametrize(
    ("model", "settings", "reasoning"),
    [
        ("gpt-6", {}, {"summary": "auto"}),
        ("gpt-6", {"reasoning_effort": "xhigh"}, {"effort": "xhigh", "summary": "auto"}),
        ("gpt-6", {"reasoning_effort": "none"}, {"effort": "none"}),
        ("gpt-6", {"thinking": 0, "reasoning_effort": "high"}, {"effort": "none"}),
        ("gpt-6", {"thinking": 4_000}, {"effort": "low", "summary": "auto"}),
        ("gpt-6", {"thinking": 4_001}, {"effort": "medium", "summary": "auto"}),
        ("gpt-6", {"thinking": 16_001}, {"effort": "high", "summary": "auto"}),
        ("gpt-5.1", {"thinking": 0}, {"effort": "none"}),
        ("gpt-5", {"thinking": 0}, {"effort": "minimal", "summary": "auto"}),
        ("gpt-5-mini-2025-08-07", {"thinking": 0}, {"effort": "minimal", "summary": "auto"}),
        ("gpt-5-codex", {"thinking": 0}, {"effort": "low", "summary": "auto"}),
        ("gpt-5-pro", {"thinking": 0}, {"effort": "high", "summary": "auto"}),
        ("o4-mini", {"thinking": 0}, {"effort": "low", "summary": "auto"}),
    ],
)
def test_effort_follows_from_the_setting_or_the_budget(model: str, settings: Any, reasoning: Any) -> None:
    body = sent(asking(**settings), model)
    assert body["reasoning"] == reasoning
    assert body["include"] == ["reasoning.encrypted_content"]


@pytest.mark.parametrize(
    ("model", "info"), [("gpt-4o", {}), ("chatgpt-4o-latest", {}), ("m", {"takes_thinking": False})]
)
def test_model_that_does_not_reason_is_not_asked_to(model: str, info: dict[str, Any]) -> None:
    assert {"reasoning", "include"} & sent(asking(thinking=4_000), model, **info).keys() == set()


def test_no_summary_is_asked_for_if_none_is_wanted() -> None:
    wire = OpenAIResponses("gpt-6", summary=None)
    assert "reasoning" not in json.loads(wire.encode(asking(), reasoning_source=SOURCE))


def test_nothing_is_stored_at_the_provider() -> None:
    body = sent(asking(stream=False))
    assert body["store"] is False
    assert {"stream", "previous_response_id", "conversation"} & body.keys() == set()


def test_cache_key_is_sent_if_the_cache_is_used_and_is_never_too_long() -> None:
    assert "prompt_cache_key" not in sent(asking())
    assert "prompt_cache_key" not in sent(asking(cache_key="k", marks_cache=False))
    first, second = (sent(asking(cache_key="k" * length))["prompt_cache_key"] for length in (100, 101))
    assert len(first) <= 64
    assert first != second


def test_token_limit_is_never_below_what_the_provider_takes() -> None:
    assert sent(asking(max_tokens=5))["max_output_tokens"] == 16


def test_system_text_is_an_item_at_its_place() -> None:
    written = items(SystemText("s"), UserText("u"), SystemText("later"))
    assert [item["role"] for item in written] == ["system", "user", "system"]


def test_lone_surrogate_is_replaced() -> None:
    assert items(UserText("a\ud83d"))[0]["content"] == "a\ufffd"


def test_key_is_a_bearer_token() -> None:
    wire = OpenAIResponses("gpt-6")
    assert wire.headers("k") == {"Authorization": "Bearer k"}
    assert wire.headers(None) == {}
