"""The body of a call of Anthropic's Messages."""

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
from holdfast.models.anthropic_messages import AnthropicMessages
from holdfast.models.info import UNKNOWN, ModelInfo
from holdfast.models.messages_conversation import FILLER, NO_RESULT
from holdfast.models.messages_parts import opaque_of_thinking
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

SOURCE = "api.anthropic.com/messages claude-opus-4-5"
PNG = Image(media_type="image/png", data=b"\x89PNG")
PNG_SENT = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG.data).decode()},
}
LOOK = ToolSpec("look", "Looks.", {"properties": {}})


def encoded(
    *messages: ContextMessage, model: str = "claude-opus-4-5", info: ModelInfo = UNKNOWN, **more: Any
) -> dict[str, Any]:
    request = ModelRequest(messages=messages, **{"marks_cache": False, **more})
    body = AnthropicMessages(model=model, info=info).encode(request, reasoning_source=SOURCE)
    value: dict[str, Any] = msgspec.json.decode(body)
    return value


def sent(*messages: ContextMessage, **more: Any) -> list[tuple[str, list[Any]]]:
    return [(message["role"], message["content"]) for message in encoded(*messages, **more)["messages"]]


def use(tool_call_id: str = "a", arguments: str = "{}") -> ToolUse:
    return ToolUse(ToolCallId(tool_call_id), "look", arguments)


def outcome(tool_call_id: str = "a", text: str = "seen", images: tuple[Image, ...] = ()) -> ToolOutcome:
    return ToolOutcome(ToolCallId(tool_call_id), text, images)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def called(tool_call_id: str = "a", arguments: object = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool_call_id, "name": "look", "input": arguments or {}}


def result(tool_call_id: str = "a", content: object = "seen") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": tool_call_id, "content": content}


def thought(words: str, *, signature: str = "s", text_before: int = 0, calls_before: int = 0) -> Reasoning:
    return Reasoning(words, opaque_of_thinking(signature), text_before, calls_before)


def thinking(words: str, signature: str = "s") -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": signature}


def answer(
    text: str = "", *uses: ToolUse, reasoning: tuple[Reasoning, ...] = (), source: str = SOURCE
) -> AssistantTurn:
    return AssistantTurn(text, uses, reasoning, source)


# Messages


def test_system_text_stands_apart_and_tools_have_schemas() -> None:
    body = encoded(SystemText("Be brief."), SystemText(""), SystemText("Be kind."), UserText("hi"), tools=(LOOK,))
    assert body["system"] == [text("Be brief."), text("Be kind.")]
    assert body["tools"] == [
        {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
    ]
    assert body["messages"] == [{"role": "user", "content": [text("hi")]}]
    assert body["stream"] is True
    assert "stream" not in encoded(UserText("hi"), stream=False)


def test_results_of_a_step_are_one_message_and_what_is_said_after_them_joins_it() -> None:
    step = answer("Both.", use("a"), use("b", '{"x": 1}'))
    assert sent(UserText("look"), step, outcome("a"), outcome("b", "", (PNG,)), UserText("and?"), UserText("so?")) == [
        ("user", [text("look")]),
        ("assistant", [text("Both."), called("a"), called("b", {"x": 1})]),
        ("user", [result("a"), result("b", [PNG_SENT]), text("and?"), text("so?")]),
    ]


def test_result_without_text_has_no_content() -> None:
    (*_, (_, [sent_result])) = sent(UserText("look"), answer("", use()), outcome(text=""))
    assert sent_result == {"type": "tool_result", "tool_use_id": "a"}


def test_images_stand_after_the_text_that_they_came_with() -> None:
    assert sent(UserText("look", (PNG,)), UserText("", (PNG,)))[0] == ("user", [text("look"), PNG_SENT, PNG_SENT])


def test_model_without_images_gets_a_line_that_says_so() -> None:
    info = ModelInfo(takes_images=False)
    ((_, [said]),) = sent(UserText("look", (PNG, PNG)), info=info)
    assert said["text"].startswith("look\n\n[2 images were left out")


def test_image_of_a_type_that_the_provider_refuses_is_left_out_with_a_line() -> None:
    ((_, [_, said]),) = sent(UserText("look", (Image(media_type="image/svg+xml", data=b"<svg/>"),)))
    assert "image/svg+xml was left out" in said["text"]


@pytest.mark.parametrize("empty", ["", " \n\t"])
def test_empty_texts_are_left_out(empty: str) -> None:
    assert sent(UserText(empty), UserText("hi"), answer(empty), UserText("so?")) == [
        ("user", [text("hi"), text("so?")])
    ]
    assert sent(SystemText(empty), UserText("hi")) == [("user", [text("hi")])]


def test_conversation_that_begins_or_ends_with_an_answer_is_valid() -> None:
    assert sent(answer("Hello."), answer("Well?")) == [
        ("user", [text(FILLER)]),
        ("assistant", [text("Hello.")]),
        ("user", [text(FILLER)]),
        ("assistant", [text("Well?")]),
        ("user", [text(FILLER)]),
    ]
    assert sent() == [("user", [text(FILLER)])]


def test_call_without_a_result_gets_one_and_a_result_without_its_call_is_text() -> None:
    assert sent(UserText("look"), answer("", use("a"), use("b")), outcome("b"), outcome("c", "lost")) == [
        ("user", [text("look")]),
        ("assistant", [called("a"), called("b")]),
        ("user", [result("b"), result("a", NO_RESULT), text("(a result without its call)\nlost")]),
    ]


def test_later_system_text_is_said_where_it_stands() -> None:
    assert sent(UserText("hi"), answer("Hello."), SystemText("Be brief."))[-1] == ("user", [text("Be brief.")])


@pytest.mark.parametrize("foreign", ["call.1", "a b", "ü", "", "x" * 100])
def test_id_that_the_provider_refuses_is_mapped_for_the_call_and_its_result(foreign: str) -> None:
    first, second = (
        sent(UserText("look"), answer("", use(foreign)), outcome(foreign), answer("", use("a")), outcome("a"))
        for _ in range(2)
    )
    assert first == second
    mapped = first[1][1][0]["id"]
    assert mapped.isascii()
    assert mapped.replace("_", "").replace("-", "").isalnum()
    assert first[2][1] == [result(mapped)]
    assert first[3][1] == [called("a")]


def test_repeated_id_is_sent_once() -> None:
    step = (answer("", use("a")), outcome("a"))
    ids = [part["id"] for _, parts in sent(UserText("look"), *step, *step) for part in parts if "id" in part]
    results = [
        part["tool_use_id"]
        for _, parts in sent(UserText("look"), *step, *step)
        for part in parts
        if "tool_use_id" in part
    ]
    assert ids == results
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("arguments", "sent_input"),
    [
        ('{"at": 1.0, "more": [1e5]}', {"at": 1.0, "more": [1e5]}),
        ("", {}),
        ('{"at": ', {"arguments": '{"at": '}),
        ("[1]", {"arguments": "[1]"}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
    ],
)
def test_arguments_are_an_object_whatever_the_model_wrote(arguments: str, sent_input: object) -> None:
    assert sent(UserText("look"), answer("", use("a", arguments)), outcome())[1][1][0]["input"] == sent_input


def test_lone_surrogates_are_replaced() -> None:
    assert sent(UserText("a\ud800b", (PNG,)))[0] == ("user", [text("a\ufffdb"), PNG_SENT])


@pytest.mark.parametrize(("name", "sent_name"), [("a.b c", "a_b_c"), ("", "unnamed"), ("x" * 200, "x" * 128)])
def test_name_that_no_tool_can_have_is_changed(name: str, sent_name: str) -> None:
    called_so = AssistantTurn("", (ToolUse(ToolCallId("a"), name, "{}"),))
    assert sent(UserText("look"), called_so, outcome())[1][1][0]["name"] == sent_name


# Reasoning


def test_thinking_goes_back_at_its_place() -> None:
    redacted = Reasoning("", '{"type":"redacted_thinking","data":"xyz"}', 4, 1)
    turn = answer(
        "One.Two.",
        use("a"),
        use("b"),
        reasoning=(thought("Hm."), redacted, thought("So.", text_before=4, calls_before=1)),
    )
    assert sent(UserText("look"), turn, outcome("a"), outcome("b"))[1] == (
        "assistant",
        [
            thinking("Hm."),
            text("One."),
            called("a"),
            {"type": "redacted_thinking", "data": "xyz"},
            thinking("So."),
            text("Two."),
            called("b"),
        ],
    )


def test_block_of_an_unknown_kind_goes_back_as_it_came() -> None:
    search = '{"type":"server_tool_use","id":"srv_1","name":"web_search","input":{"query":"x"}}'
    turn = answer("Found.", reasoning=(Reasoning("", search),))
    assert sent(UserText("look"), turn, UserText("so?"))[1][1] == [msgspec.json.decode(search), text("Found.")]


def test_reasoning_of_another_source_is_left_out() -> None:
    turn = answer("One.", use(), reasoning=(thought("Hm."),), source="elsewhere")
    assert sent(UserText("look"), turn, outcome())[1] == ("assistant", [text("One."), called()])


@pytest.mark.parametrize("opaque", ["", "no json", "[1]", '{"summary": []}', "\ud800"])
def test_reasoning_in_another_form_is_left_out(opaque: str) -> None:
    turn = answer("One.", use(), reasoning=(Reasoning("Hm.", opaque),))
    assert sent(UserText("look"), turn, outcome())[1] == ("assistant", [text("One."), called()])


def test_no_answer_ends_with_thinking() -> None:
    assert sent(UserText("hi"), answer("One.", reasoning=(thought("Hm.", text_before=4),)), UserText("so?"))[1] == (
        "assistant",
        [text("One.")],
    )
    assert sent(UserText("hi"), answer("", reasoning=(thought("Hm."),)), UserText("so?")) == [
        ("user", [text("hi"), text("so?")])
    ]


# Limits


@pytest.mark.parametrize(
    ("model", "budget", "expected"),
    [
        ("claude-opus-4-5", 8_000, {"type": "enabled", "budget_tokens": 8_000}),
        ("claude-sonnet-4-20250514", 8_000, {"type": "enabled", "budget_tokens": 8_000}),
        ("claude-haiku-4-5-20251001", 10, {"type": "enabled", "budget_tokens": 1_024}),
        ("claude-3-7-sonnet-latest", 2_000, {"type": "enabled", "budget_tokens": 2_000}),
        ("claude-opus-4-6", 2_000, {"type": "enabled", "budget_tokens": 2_000}),
        ("kimi-k2", 2_000, {"type": "enabled", "budget_tokens": 2_000}),
        ("claude-opus-4-7", 2_000, {"type": "adaptive", "display": "summarized"}),
        ("claude-sonnet-5", 2_000, {"type": "adaptive", "display": "summarized"}),
        ("claude-opus-5-5", 2_000, {"type": "adaptive", "display": "summarized"}),
        ("claude-mythos-preview", 2_000, {"type": "adaptive", "display": "summarized"}),
        ("claude-opus-4-5", 0, {"type": "disabled"}),
        ("claude-opus-5", 0, {"type": "disabled"}),
        ("claude-mythos-preview", 0, None),
        ("claude-opus-4-5", None, None),
    ],
)
def test_thinking_fits_the_model(model: str, budget: int | None, expected: object) -> None:
    body = encoded(UserText("hi"), model=model, thinking=budget)
    assert body.get("thinking") == expected
    if expected and budget:
        assert body["max_tokens"] > budget


@pytest.mark.parametrize(("budget", "effort"), [(2_000, "low"), (8_000, "medium"), (30_000, "high")])
def test_model_that_decides_itself_gets_an_effort(budget: int, effort: str) -> None:
    assert encoded(UserText("hi"), model="claude-opus-5", thinking=budget)["output_config"] == {"effort": effort}


def test_effort_is_a_budget_where_the_model_takes_one() -> None:
    assert encoded(UserText("hi"), reasoning_effort="low")["thinking"]["budget_tokens"] == 4_000
    assert "thinking" not in encoded(UserText("hi"), reasoning_effort="strange")


@pytest.mark.parametrize(
    ("info", "asked", "expected"),
    [
        (UNKNOWN, None, 32_000),
        (UNKNOWN, 500, 500),
        (ModelInfo(max_output=8_192), None, 8_192),
        (ModelInfo(max_output=8_192), 10_000, 8_192),
        (ModelInfo(max_output=128_000, window=1_000_000), None, 64_000),
        (ModelInfo(window=10_000), None, 9_797),
        (ModelInfo(window=100), None, 97),
    ],
)
def test_longest_answer_follows_from_the_model(info: ModelInfo, asked: int | None, expected: int) -> None:
    assert encoded(UserText("hi"), info=info, max_tokens=asked)["max_tokens"] == pytest.approx(expected, abs=30)


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "budget"),
    [(1_000, 30_360, 16_000), (12_000, 19_360, 8_000), (20_000, 11_360, 4_000), (26_000, 5_360, 1_024)],
)
def test_answer_and_thinking_shrink_with_the_room_that_the_session_knows_of(
    tokens: int, max_tokens: int, budget: int
) -> None:
    body = encoded(UserText("hi"), thinking=16_000, window=32_000, tokens=tokens)
    assert (body["max_tokens"], body["thinking"]["budget_tokens"]) == (max_tokens, budget)
    assert body["max_tokens"] + tokens < 32_000


def test_answer_is_still_asked_for_in_a_window_that_is_full() -> None:
    """The provider then says that the call is too long, and the session is compacted."""
    assert encoded(UserText("hi"), window=32_000, tokens=31_900)["max_tokens"] == 4_000
    assert encoded(UserText("hi"), window=200_000, tokens=200_000)["max_tokens"] == 4_096


def test_answer_has_room_beside_its_thinking() -> None:
    body = encoded(UserText("hi"), info=ModelInfo(max_output=8_192), thinking=8_000)
    assert body["max_tokens"] == 8_192
    assert body["thinking"]["budget_tokens"] == 4_096
    body = encoded(UserText("hi"), max_tokens=500, thinking=8_000)
    assert body["max_tokens"] > body["thinking"]["budget_tokens"] == 8_000


def test_model_without_thinking_is_not_asked_for_it() -> None:
    assert "thinking" not in encoded(UserText("hi"), info=ModelInfo(takes_thinking=False), thinking=8_000)
    assert "thinking" not in encoded(UserText("hi"), info=ModelInfo(max_output=1_000), thinking=8_000)


def test_turn_of_tools_that_began_without_thinking_goes_on_without_it() -> None:
    foreign = answer("", use(), reasoning=(thought("Hm."),), source="elsewhere")
    own = answer("", use("b"), reasoning=(thought("Hm."),))
    late = (own, outcome("b"))
    assert "thinking" not in encoded(UserText("look"), foreign, outcome(), thinking=2_000)
    assert "thinking" not in encoded(UserText("look"), foreign, outcome(), *late, thinking=2_000)
    assert "thinking" in encoded(UserText("look"), *late, foreign, outcome(), thinking=2_000)
    assert "thinking" in encoded(UserText("look"), foreign, outcome(), answer("Well."), UserText("so?"), thinking=2_000)


# Marks


def marks(body: dict[str, Any]) -> list[str]:
    """The places of the marks."""
    found = [f"tool {n}" for n, tool in enumerate(body.get("tools", ())) if "cache_control" in tool]
    found += [f"system {n}" for n, part in enumerate(body.get("system", ())) if "cache_control" in part]
    for n, message in enumerate(body["messages"]):
        found += [f"message {n} part {i}" for i, part in enumerate(message["content"]) if "cache_control" in part]
    return found


HISTORY = (
    SystemText("Be brief."),
    SystemText("Be kind."),
    UserText("look"),
    answer("", use("a"), use("b")),
    outcome("a"),
    outcome("b"),
    answer("Seen."),
    UserText("so?"),
)


@pytest.mark.parametrize(
    ("anchor", "place"),
    [
        (None, []),
        (2, ["message 0 part 0"]),
        (3, ["message 1 part 1"]),
        (4, ["message 2 part 0"]),
        (5, ["message 2 part 1"]),
        (6, ["message 3 part 0"]),
        (7, []),
        (0, []),
    ],
)
def test_marks_are_at_the_tools_the_system_text_the_anchor_and_the_end(anchor: int | None, place: list[str]) -> None:
    body = encoded(*HISTORY, tools=(LOOK, LOOK), marks_cache=True, cache_anchor=anchor)
    assert marks(body) == ["tool 1", "system 1", *place, "message 4 part 0"]


def test_there_are_no_marks_where_none_are_wanted() -> None:
    assert marks(encoded(*HISTORY, tools=(LOOK,), cache_anchor=3)) == []


def test_anchor_at_a_message_that_is_left_out_is_at_the_one_before_it() -> None:
    body = encoded(UserText("hi"), answer("Hello."), UserText(""), UserText("so?"), marks_cache=True, cache_anchor=2)
    assert marks(body) == ["message 1 part 0", "message 2 part 0"]


# The prefix

WORDS = st.text(max_size=8)
IDS = st.sampled_from(["a", "b", "call.1", "ü", "toolu_1"])
IMAGES = st.lists(st.sampled_from([PNG, Image(media_type="image/bmp", data=b"x")]), max_size=2).map(tuple)


@st.composite
def steps(draw: st.DrawFn) -> list[ContextMessage]:
    """What one step adds: an answer, the results of its tools, and what people said meanwhile."""
    uses = [
        ToolUse(ToolCallId(i), "look", draw(st.sampled_from(["{}", '{"a":1}', "x"])))
        for i in draw(st.lists(IDS, max_size=3, unique=True))
    ]
    said = draw(WORDS)
    reasoning = tuple(
        Reasoning(
            draw(WORDS),
            draw(st.sampled_from([opaque_of_thinking("s"), '{"type":"redacted_thinking","data":"d"}', "x"])),
            at,
            calls,
        )
        for at, calls in sorted(draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=3)))
    )
    turn = AssistantTurn(said, tuple(uses), reasoning, draw(st.sampled_from([SOURCE, "elsewhere"])))
    results = [ToolOutcome(use.tool_call_id, draw(WORDS), draw(IMAGES)) for use in uses]
    texts = [UserText(words, draw(IMAGES)) for words in draw(st.lists(WORDS, max_size=2))]
    return [turn, *results, *texts]


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: unmarked(part) for name, part in value.items() if name != "cache_control"}
    return [unmarked(part) for part in value] if isinstance(value, list) else value


@given(
    opening=WORDS,
    added=st.lists(steps(), min_size=1, max_size=5),
    anchors=st.lists(st.integers(0, 20), min_size=6, max_size=6),
)
def test_conversation_of_a_step_is_the_beginning_of_the_next_one(
    opening: str, added: list[list[ContextMessage]], anchors: list[int]
) -> None:
    messages: list[ContextMessage] = [SystemText("Be brief."), UserText("Go. " + opening)]
    before: list[Any] | None = None
    for step, anchor in zip([[], *added], anchors, strict=False):
        is_answered = bool(step) and bool(sent(UserText("Go."), step[0])[1:])
        messages += step
        body = encoded(*messages, tools=(LOOK,), marks_cache=True, cache_anchor=anchor)
        assert len(marks(body)) <= 4
        now = unmarked(body["messages"])
        assert [message["role"] for message in now] == ["user", "assistant"] * (len(now) // 2) + ["user"]
        if before is not None and is_answered:
            assert now[: len(before)] == before
        elif before is not None:
            # An answer without anything to send: what follows it joins the message before.
            assert now[: len(before) - 1] == before[:-1]
            assert now[len(before) - 1]["content"][: len(before[-1]["content"])] == before[-1]["content"]
        before = now


def test_conversation_has_the_same_bytes_apart_from_the_marks() -> None:
    wire = AnthropicMessages(model="claude-opus-4-5")
    bodies = [
        wire.encode(ModelRequest(messages=HISTORY[:end], marks_cache=False), reasoning_source=SOURCE)
        for end in (3, 6, 8)
    ]
    conversations = [body.partition(b'"messages":')[2].removesuffix(b"]}") for body in bodies]
    assert conversations[1].startswith(conversations[0])
    assert conversations[2].startswith(conversations[1])
