"""A streamed answer: chunks become blocks and segments, and the segments join into the same blocks."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import convert, to_builtins

from holdfast.events.ids import MessageId, ToolCallId
from holdfast.events.message import Block, ReasoningBlock, TextBlock, ToolCallBlock
from holdfast.models.model import Chunk, Finished, ReasoningDelta, ReasoningEnd, TextDelta, TokenUsage, ToolCallDelta
from holdfast.store.store import Segment
from holdfast.turns.answer_buffer import AnswerBuffer, blocks_of
from tests.turns.recording import batches, counted


def no_time_passes() -> float:
    return 0.0


def answer_of(*chunks: Chunk, monotonic: Callable[[], float] = no_time_passes) -> AnswerBuffer:
    answer = AnswerBuffer(MessageId("m"), 1, counted("new"), monotonic)
    answer.take(chunks)
    return answer


def called(id: str, name: str, arguments: str) -> ToolCallBlock:
    return ToolCallBlock(tool_call_id=ToolCallId(id), name=name, arguments=arguments)


def pieces(segments: list[Segment]) -> list[tuple[int, int, str]]:
    return [(found.block, found.offset, found.text) for found in segments]


def test_text_reasoning_and_tool_calls_keep_their_order() -> None:
    answer = answer_of(
        ReasoningDelta("Hm"),
        ReasoningDelta("."),
        TextDelta("I "),
        TextDelta("look."),
        ToolCallDelta(0, '{"a"', "c1", "view"),
        ToolCallDelta(0, ":1}"),
        TextDelta("And then"),
        ReasoningDelta("Well."),
    )
    assert answer.blocks() == (
        ReasoningBlock(text="Hm."),
        TextBlock(text="I look."),
        called("c1", "view", '{"a":1}'),
        TextBlock(text="And then"),
        ReasoningBlock(text="Well."),
    )
    assert answer.text() == "I look.And then"
    assert answer.calls() == [called("c1", "view", '{"a":1}')]


def test_the_end_of_a_block_of_reasoning_brings_its_opaque_part_and_separates_it_from_the_next() -> None:
    answer = answer_of(
        ReasoningDelta("Hm."),
        ReasoningEnd('{"signature":"a"}'),
        ReasoningDelta("Well."),
        ReasoningEnd('{"signature":"b"}'),
        ReasoningEnd('{"redacted":"c"}'),
        TextDelta("Yes."),
    )
    assert answer.blocks() == (
        ReasoningBlock(text="Hm.", opaque='{"signature":"a"}'),
        ReasoningBlock(text="Well.", opaque='{"signature":"b"}'),
        ReasoningBlock(text="", opaque='{"redacted":"c"}'),
        TextBlock(text="Yes."),
    )
    assert pieces(answer.take_segments()) == [(0, 0, "Hm."), (1, 0, "Well."), (3, 0, "Yes.")]


def test_all_that_is_kept_of_an_answer_counts_for_its_size() -> None:
    answer = answer_of(
        ReasoningDelta("Hm."),
        ReasoningEnd("sealed"),
        ReasoningEnd("more"),
        TextDelta("Yes."),
        ToolCallDelta(0, "", "c1", "view"),
        ToolCallDelta(0, '{"a":1}'),
    )
    assert answer.characters == len('Hm.sealedmoreYes.c1view{"a":1}')


def test_reasoning_lasts_until_the_next_block_or_the_end_of_the_answer() -> None:
    times = iter([10.0, 13.25, 20.0, 20.5])
    answer = answer_of(
        ReasoningDelta("Hm"),
        ReasoningDelta("."),
        TextDelta("I look."),
        ReasoningDelta("Well."),
        Finished("stop"),
        monotonic=lambda: next(times),
    )
    assert answer.blocks() == (
        ReasoningBlock(text="Hm.", duration_ms=3_250),
        TextBlock(text="I look."),
        ReasoningBlock(text="Well.", duration_ms=500),
    )


def test_unmeasured_reasoning_has_no_duration() -> None:
    assert to_builtins(ReasoningBlock(text="Hm.")) == {"type": "reasoning", "text": "Hm."}
    assert convert({"type": "reasoning", "text": "Hm."}, ReasoningBlock).duration_ms == 0
    unfinished = answer_of(ReasoningDelta("Hm."), monotonic=iter([1.0]).__next__)
    assert unfinished.blocks() == (ReasoningBlock(text="Hm."),)


def test_usage_and_finish_reason_are_kept_beside_the_blocks() -> None:
    usage = TokenUsage(input_tokens=3)
    answer = answer_of(TextDelta("x"), usage, Finished("length"))
    assert (answer.usage, answer.finish_reason, answer.characters) == (usage, "length", 1)


def test_offsets_are_bytes_and_segments_are_taken_once() -> None:
    answer = answer_of(TextDelta("é𝄞"))
    assert pieces(answer.take_segments()) == [(0, 0, "é𝄞")]
    assert answer.take_segments() == []
    answer.take([TextDelta("x"), TextDelta("y"), ReasoningDelta("漢")])
    assert pieces(answer.take_segments()) == [(0, 6, "xy"), (1, 0, "漢")]
    answer.take([ReasoningDelta("!")])
    assert pieces(answer.take_segments()) == [(1, 3, "!")]


@pytest.mark.parametrize("chunk", [TextDelta(""), ReasoningDelta("")])
def test_an_empty_chunk_makes_no_block(chunk: Chunk) -> None:
    answer = answer_of(chunk, TextDelta("a"), chunk, TextDelta("b"))
    assert answer.blocks() == (TextBlock(text="ab"),)


def test_interleaved_tool_calls_are_assembled_by_their_index() -> None:
    answer = answer_of(
        ToolCallDelta(0, "", "c1", "view"),
        ToolCallDelta(1, "", "c2", "view"),
        ToolCallDelta(1, '{"b"'),
        ToolCallDelta(0, '{"a"'),
        ToolCallDelta(1, ":2}"),
        ToolCallDelta(0, ":1}"),
    )
    assert answer.blocks() == (called("c1", "view", '{"a":1}'), called("c2", "view", '{"b":2}'))


def test_a_later_tool_call_is_held_back_until_the_earlier_one_is_complete() -> None:
    """A reader's place is one block and one byte offset, so segments never return to an earlier block."""
    answer = answer_of(ToolCallDelta(0, '{"a"', "c1", "view"), ToolCallDelta(1, "{}", "c2", "view"))
    assert pieces(answer.take_segments()) == [(0, 0, '{"a"')]
    answer.take([TextDelta("And")])
    assert answer.take_segments() == []
    answer.take([ToolCallDelta(0, ":1}")])
    assert pieces(answer.take_segments()) == [(0, 4, ":1}"), (1, 0, "{}"), (2, 0, "And")]


def test_a_complete_tool_call_ignores_more_arguments_once_another_block_has_begun() -> None:
    answer = answer_of(ToolCallDelta(0, "{}", "c1", "view"), TextDelta("x"), ToolCallDelta(0, "garbage"))
    assert answer.blocks() == (called("c1", "view", "{}"), TextBlock(text="x"))


@pytest.mark.parametrize("arguments", ["not json", "", "[1", "{" * 5_000 + "}"])
def test_arguments_that_are_not_json_are_kept_unchanged(arguments: str) -> None:
    answer = answer_of(ToolCallDelta(0, arguments, "c1", "view"), TextDelta("x"))
    answer.take_segments()
    assert answer.blocks() == (called("c1", "view", arguments), TextBlock(text="x"))


def test_a_tool_call_is_not_shown_before_its_name_is_known() -> None:
    answer = answer_of(ToolCallDelta(0, '{"a', "c1"))
    assert answer.take_segments() == []
    answer.take([ToolCallDelta(0, '":1}', name="view"), ToolCallDelta(0, "", name="other")])
    (segment,) = answer.take_segments()
    assert (segment.name, segment.tool_call_id, segment.text) == ("view", "c1", '{"a":1}')


def test_tool_calls_without_an_id_or_with_a_duplicate_id_get_a_new_one() -> None:
    answer = answer_of(
        ToolCallDelta(0, "", "c1", "a"),
        ToolCallDelta(1, "", "c1", "b"),
        ToolCallDelta(2, "", "", "c"),
        ToolCallDelta(3, "", "", "d"),
    )
    assert [call.tool_call_id for call in answer.calls()] == ["c1", "call_new1", "call_new2", "call_new3"]


def test_a_lone_surrogate_becomes_the_replacement_character_at_once() -> None:
    answer = answer_of(TextDelta("a\ud834"), ToolCallDelta(0, "\udd1e", "c\ud800", "v\ud800"))
    assert answer.blocks() == (TextBlock(text="a\ufffd"), called("c\ufffd", "v\ufffd", "\ufffd"))
    assert pieces(answer.take_segments()) == [(0, 0, "a\ufffd"), (1, 0, "\ufffd")]


def shown_and_held_back(blocks: tuple[Block, ...], shown: tuple[Block, ...]) -> bool:
    """Whether `shown` is a prefix of the answer: whole blocks, and perhaps a part of the next one."""
    if len(shown) > len(blocks) or shown[:-1] != blocks[: max(len(shown) - 1, 0)]:
        return False
    return not shown or whole_text(blocks[len(shown) - 1]).startswith(whole_text(shown[-1]))


def whole_text(block: Block) -> str:
    return block.arguments if isinstance(block, ToolCallBlock) else block.text


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_committed_segments_are_always_a_prefix_of_the_answer(seed: int) -> None:
    chance = Random(seed)
    answer = answer_of()
    segments: list[Segment] = []
    for chunks in batches(chance):
        answer.take(chunks)
        if chance.random() < 0.6:
            taken = answer.take_segments()
            places = [(found.block, found.offset) for found in [*segments[-1:], *taken]]
            assert places == sorted(places)
            segments += taken
            assert shown_and_held_back(answer.blocks(), blocks_of(segments))


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6), cuts=st.lists(st.integers(0, 9)))
def test_segments_join_into_the_same_blocks_however_the_answer_was_split(texts: list[str], cuts: list[int]) -> None:
    chunks: list[Chunk] = []
    for number, words in enumerate(texts):
        if number % 3 == 2:
            chunks.append(ToolCallDelta(number, '{"a": 1}', f"c{number}", "view"))
        split = cuts[number % len(cuts)] if cuts else 0
        kind = TextDelta if number % 2 else ReasoningDelta
        chunks += [kind(words[:split]), kind(words[split:])]
    answer, segments = answer_of(), []
    for number, chunk in enumerate(chunks):
        answer.take([chunk])
        if number in cuts:
            segments += answer.take_segments()
    segments += answer.take_segments()
    assert blocks_of(segments) == answer.blocks()
    assert blocks_of(reversed(segments)) == answer.blocks()
