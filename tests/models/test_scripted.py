"""The scripted model: its answers follow from the conversation, and it fails as the script says."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import msgspec
import pytest

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
from holdfast.models.model import (
    AssistantTurn,
    ContextMessage,
    ModelError,
    ModelRequest,
    TextDelta,
    TokenUsage,
    ToolOutcome,
    ToolUse,
    UserText,
)
from holdfast.models.scripted import Failure, FailureKind, Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.models.title_request import title_request
from holdfast.session.notices import HEADER, NO_TASKS
from tests.models.answers import (
    answer_of,
    asking,
    failed_answer_of,
    finish_of,
    reasoning_of,
    text_of,
    tool_calls_of,
    usage_of,
)

pytestmark = pytest.mark.anyio

NOTE = UserText("Your reply was interrupted; answer again.")
ROUND: tuple[ContextMessage, ...] = (
    AssistantTurn("", (ToolUse(ToolCallId("c"), "view", "{}"),)),
    ToolOutcome(ToolCallId("c"), "the result"),
)
SCRIPT = Script(
    (
        Rule((Reply(text="file 0", tool_calls=(ScriptedCall("view"),)), Reply(text="file 1")), when="file"),
        Rule((Reply(text="stop 0"),), when="stop"),
        Rule((Reply(text="other 0"), Reply(text="other 1: {user}"))),
    )
)


async def said(script: Script, *messages: ContextMessage) -> str:
    return text_of(await answer_of(ScriptedModel(script), ModelRequest(messages=messages)))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([UserText("Open the FILE")], "file 0"),
        ([UserText("hello")], "other 0"),
        ([], "other 0"),
        ([UserText("file"), *ROUND], "file 1"),
        ([UserText("file"), *ROUND, *ROUND, *ROUND], "file 1"),
        # Notes of the runtime, after a cut answer and after no answer at all.
        ([UserText("file"), AssistantTurn("fi"), NOTE], "file 0"),
        ([UserText("file"), *ROUND, AssistantTurn("fi"), NOTE, AssistantTurn("f"), NOTE], "file 1"),
        ([UserText("hello"), AssistantTurn("oth"), NOTE], "other 0"),
        ([UserText("file"), *ROUND, AssistantTurn(""), UserText("Summarise what you did.")], "file 1"),
        # Steered into a running turn: a text with a rule takes over, any other text does not change the rule.
        ([UserText("file"), *ROUND, UserText("be brief")], "file 1"),
        ([UserText("file"), *ROUND, UserText("no, stop")], "stop 0"),
        ([UserText("file"), *ROUND, UserText("another file")], "file 0"),
        ([UserText("hello"), *ROUND, UserText("be brief")], "other 1: be brief"),
        # A list of running tasks, which may quote anything, is no message.
        (
            [UserText("hello"), *ROUND, UserText(f"{HEADER}\n- [t1] open the file (started then, output: f)")],
            "other 1: hello",
        ),
        ([UserText("file"), *ROUND, UserText(NO_TASKS)], "file 1"),
        # A new turn, after a finished answer.
        ([UserText("file"), *ROUND, AssistantTurn("file 1"), UserText("hello")], "other 0"),
        ([UserText("file"), *ROUND, AssistantTurn("file 1"), UserText("hello"), *ROUND], "other 1: hello"),
        ([UserText("hello"), AssistantTurn("other 0"), UserText("file")], "file 0"),
    ],
)
async def test_reply_follows_from_the_conversation(messages: Sequence[ContextMessage], expected: str) -> None:
    assert await said(SCRIPT, *messages) == expected


async def test_without_a_catch_all_the_earlier_rule_still_applies() -> None:
    script = Script(SCRIPT.rules[:2])
    assert await said(script, UserText("stop"), AssistantTurn("stop 0"), UserText("hello")) == "stop 0"
    assert await said(script, UserText("hello")) == "The script has no reply to this."


async def test_a_note_may_have_a_rule_of_its_own() -> None:
    script = Script((Rule((Reply(text="again"),), when="reply was interrupted"), *SCRIPT.rules))
    assert await said(script, UserText("file"), AssistantTurn("fi"), NOTE) == "again"


async def test_rule_may_require_an_image_in_the_text_or_in_a_later_tool_result() -> None:
    seen = Rule((Reply(text="I see it"),), when="look", has_image=True)
    any_image = Rule((Reply(text="An image"),), has_image=True)
    unseen = Rule((Reply(text="Where?", tool_calls=(ScriptedCall("view"),)), Reply(text="Still nothing")), when="look")
    script = Script((seen, any_image, unseen, Rule((Reply(text="Yes?"),))))
    image = (Image(media_type="image/png", data=b"x"),)
    use, outcome = (
        AssistantTurn("", (ToolUse(ToolCallId("c"), "view", "{}"),)),
        ToolOutcome(ToolCallId("c"), "r", image),
    )
    assert await said(script, UserText("Look here", image)) == "I see it"
    assert await said(script, UserText("Look here")) == "Where?"
    assert await said(script, UserText("Look here"), use, outcome) == "I see it"
    assert await said(script, UserText("Look here"), *ROUND) == "Still nothing"
    assert await said(script, UserText("hello", image)) == "An image"
    assert await said(script, UserText("hello")) == "Yes?"


async def test_placeholders_are_filled_once() -> None:
    script = Script((Rule((Reply(text="{user} -> {last_tool_result} {else}"),)),))
    assert await said(script, UserText("{last_tool_result}"), *ROUND) == "{last_tool_result} -> the result {else}"


async def test_a_script_is_read_from_json() -> None:
    script = Script.from_json("""
        {"rules": [{"when": "hi", "replies": [{
            "reasoning": "r", "text": "t", "usage": {"input_tokens": 1}, "finish": "length",
            "tool_calls": [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": "raw"}],
            "fail": {"kind": "rate_limited", "retry_after": 3, "times": 1}}]}]}
        """)
    model = ScriptedModel(script)
    with pytest.raises(ModelError):
        await answer_of(model, asking("hi"))
    chunks = await answer_of(model, asking("hi"))
    assert (reasoning_of(chunks), text_of(chunks), finish_of(chunks)) == ("r", "t", "length")
    assert [call[1:] for call in tool_calls_of(chunks)] == [("a", '{"x":1}'), ("b", "raw")]
    assert usage_of(chunks) == TokenUsage(input_tokens=1)


def test_script_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="delay"):
        Script.from_json('{"rules": [{"replies": [{"delay": 3}]}]}')


async def test_the_same_conversation_gets_the_same_answer_from_another_instance() -> None:
    first = await answer_of(ScriptedModel(SCRIPT), asking("file"))
    assert await answer_of(ScriptedModel(SCRIPT), asking("file")) == first


async def test_tool_call_ids_differ_from_call_to_call() -> None:
    script = Script((Rule((Reply(tool_calls=(ScriptedCall("a"), ScriptedCall("a"))),)),))
    model = ScriptedModel(script)
    chunks = await answer_of(model, asking("x"))
    later = await answer_of(model, ModelRequest(messages=(UserText("x"), *ROUND)))
    assert len({call[0] for call in tool_calls_of(chunks) + tool_calls_of(later)}) == 4


async def test_texts_take_turns() -> None:
    model = ScriptedModel(Script((Rule((Reply(texts=("a", "b")),)),)))
    assert [text_of(await answer_of(model, asking())) for _ in range(3)] == ["a", "b", "a"]


async def test_varied_answers_differ_within_and_across_processes() -> None:
    script = Script((Rule((Reply(text="a", tool_calls=(ScriptedCall("f"),)),)),), varied=True)
    models = [ScriptedModel(script), ScriptedModel(script)]
    answers = [await answer_of(model, asking()) for model in models * 2]
    assert len({text_of(answer) for answer in answers}) == 4
    assert len({tool_calls_of(answer)[0][0] for answer in answers}) == 4


@pytest.mark.parametrize(
    ("reply", "pieces"),
    [
        (Reply(text=" one  two\nthree \n"), [" one", "  two", "\nthree", " \n"]),
        (Reply(text="abcde", chunk_size=2), ["ab", "cd", "e"]),
        (Reply(), []),
    ],
)
async def test_answer_is_split_into_pieces(reply: Reply, pieces: list[str]) -> None:
    chunks = await answer_of(ScriptedModel(Script((Rule((reply,)),))), asking())
    assert [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)] == pieces


async def test_an_answer_that_does_not_stream_is_one_batch() -> None:
    batches = [batch async for batch in ScriptedModel(SCRIPT).stream(asking("file", stream=False))]
    assert len(batches) == 1
    assert text_of(batches[0]) == "file 0"


async def test_gate_is_awaited_before_each_piece() -> None:
    held: asyncio.Queue[int] = asyncio.Queue()
    go = asyncio.Semaphore(0)

    async def gate(index: int) -> None:
        held.put_nowait(index)
        await go.acquire()

    model = ScriptedModel(Script((Rule((Reply(text="a b"),)),)), gate=gate)
    async with aclosing(model.stream(asking())) as answer:
        for index in range(3):
            batch = asyncio.ensure_future(anext(answer))
            assert await held.get() == index
            assert not batch.done()
            go.release()
            await batch


async def test_title_call_uses_no_reply_and_skips_the_gate() -> None:
    async def never(piece: int) -> None:
        raise AssertionError("a title waits for nothing")

    script = Script((Rule((Reply(texts=("one", "two")),)),))
    asks = title_request("what is this about, then?")
    held = ScriptedModel(script, gate=never)
    assert text_of(await answer_of(held, asks)) == "What is this about, then?"
    model = ScriptedModel(script)
    for expected in ("one", "two"):
        assert text_of(await answer_of(model, asks)) == "What is this about, then?"
        assert text_of(await answer_of(model, ModelRequest(messages=(UserText("u"),)))) == expected
    scripted = ScriptedModel(Script(script.rules, title=Reply(text="About this")))
    assert text_of(await answer_of(scripted, asks)) == "About this"


async def test_delays_are_kept() -> None:
    model = ScriptedModel(Script((Rule((Reply(text="a b", delay_ms=1, chunk_delay_ms=1),)),)))
    assert text_of(await answer_of(model, asking())) == "a b"


@pytest.mark.parametrize(
    ("kind", "code", "status", "sent"),
    [
        ("rate_limited", "model_rate_limited", 429, ""),
        ("unavailable", "model_unavailable", 503, ""),
        ("unauthorized", "model_unauthorized", 401, ""),
        ("refused", "model_refused", 400, ""),
        ("malformed", "model_garbage", None, "a b"),
        ("cut", "model_cut", None, "a b"),
    ],
)
async def test_each_failure_raises_its_error(kind: FailureKind, code: str, status: int | None, sent: str) -> None:
    fail = Failure(kind=kind, after=2, times=1)
    model = ScriptedModel(Script((Rule((Reply(text="a b c", fail=fail),)),)))
    chunks, error = await failed_answer_of(model, asking())
    assert (error.code, error.status, text_of(chunks)) == (code, status, sent)
    assert text_of(await answer_of(model, asking())) == "a b c"


async def test_failure_after_too_many_pieces_comes_before_the_closing() -> None:
    model = ScriptedModel(Script((Rule((Reply(text="a b", fail=Failure(kind="cut", after=99)),)),)))
    chunks, _ = await failed_answer_of(model, asking())
    assert chunks == [TextDelta("a"), TextDelta(" b")]


async def test_hanging_model_can_be_cancelled() -> None:
    model = ScriptedModel(Script((Rule((Reply(text="a b", fail=Failure(kind="hang", after=1)),)),)))
    async with aclosing(model.stream(asking())) as answer:
        assert await anext(answer) == [TextDelta("a")]
        waiting = asyncio.ensure_future(anext(answer))
        done, _ = await asyncio.wait([waiting], timeout=0)
        assert not done
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
