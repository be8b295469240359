"""The log on a terminal: without characters that a terminal obeys, and the same live or loaded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.answers import permission_answer, question_answer
from holdfast.cli.escapes import visible
from holdfast.cli.hints import Hints
from holdfast.cli.line_flow import LineFlow
from holdfast.cli.transcript import Piece, Transcript, one_line, styled
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Position, RequestId, TaskId, ToolCallId, TurnId
from holdfast.events.message import AssistantMessage, Sealed, TextBlock, UserMessage
from holdfast.events.request import PermissionRequested, UserInputRequested
from holdfast.events.session import SessionError, SessionInfo
from holdfast.events.task import NoticeKind, TaskNotice, TaskNotified, TaskStarted
from holdfast.events.tool import ToolCompleted, ToolStarted
from holdfast.events.turn import TurnStarted
from holdfast.live.live import Delta
from holdfast.protocol.reading import Reading

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\x7f\x00\u202eevil"


def event(body: Body) -> Event:
    return Event(Position(1), EventId("e"), 0, body)


def delta(text: str, *, block: int = 0) -> Delta:
    return Delta(message_id=MessageId("m"), block=block, kind="text", offset=0, text=text)


def shown(*readings: Reading) -> str:
    transcript = Transcript()
    return "".join(piece.text for reading in readings for piece in transcript.take(reading))


def is_harmless(text: str) -> bool:
    return all(character in "\n\t" or not (ord(character) < 32 or 127 <= ord(character) < 160) for character in text)


def everything_hostile() -> list[Reading]:
    call, request = ToolCallId(HOSTILE), RequestId(HOSTILE)
    return [
        delta(HOSTILE),
        event(UserMessage(message_id=MessageId("u"), turn_id=TurnId("t"), content=HOSTILE, delivery="idle")),
        event(ToolStarted(tool_call_id=call, tool_name=HOSTILE, arguments='{"a":"' + "\\u001b[2J" + '"}')),
        event(
            PermissionRequested(
                request_id=request, tool_call_id=call, tool_name=HOSTILE, kind="write", subject=HOSTILE, rule="write"
            )
        ),
        event(UserInputRequested(request_id=request, tool_call_id=call, question=HOSTILE, choices=(HOSTILE,))),
        event(ToolCompleted(tool_call_id=call, success=False, content=HOSTILE)),
        event(SessionError(error_type=HOSTILE, message=HOSTILE)),
        event(SessionInfo(info_type="x", message=HOSTILE)),
        event(TaskStarted(task_id=TaskId(HOSTILE), tool_call_id=call, command=HOSTILE, description=HOSTILE)),
        event(TaskNotified(notice=notice("failed", task_id=TaskId(HOSTILE), description=HOSTILE, detail=HOSTILE))),
    ]


def notice(kind: NoticeKind, **more: Any) -> TaskNotice:
    about = {"task_id": TaskId("t1"), "command": "make all", "duration_ms": 12_345}
    return TaskNotice(kind=kind, **{**about, **more})


def test_nothing_that_a_terminal_obeys_gets_through() -> None:
    text = shown(*everything_hostile())
    assert "evil" in text
    assert is_harmless(text)


@given(st.text())
def test_no_text_at_all_gets_a_control_character_through(text: str) -> None:
    assert is_harmless(visible(text))
    assert "\n" not in one_line(text)


@given(st.text(alphabet="ab \n", max_size=40), st.data())
def test_an_answer_looks_the_same_however_it_was_cut_into_pieces(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    end = event(AssistantMessage(message_id=MessageId("m"), blocks=(TextBlock(text=text),)))
    assert shown(*(delta(piece) for piece in pieces), end) == shown(delta(text), end)


def test_a_cut_answer_is_marked_where_it_was_cut() -> None:
    cut = AssistantMessage(message_id=MessageId("m"), blocks=(TextBlock(text="half a"),), interrupted=True)
    sealed = Sealed(message_id=MessageId("m"), next_message_id=MessageId("n"), cause="crash")
    text = shown(delta("half a"), event(cut), event(sealed), delta("whole"))
    assert text.startswith("half a (interrupted)\n")
    assert text.endswith("\n\nwhole")
    at_line_start = AssistantMessage(message_id=MessageId("m"), blocks=(TextBlock(text="a\n"),), interrupted=True)
    assert shown(delta("a\n"), event(at_line_start)) == "a\n(interrupted)\n"


def test_a_tool_is_one_line_that_says_what_ran_and_how_it_ended() -> None:
    call = ToolCallId("c")
    started = event(ToolStarted(tool_call_id=call, tool_name="view", arguments='{"path":"notes.txt"}'))
    done = event(ToolCompleted(tool_call_id=call, success=True, content="1. x\n2. y", duration_ms=1234))
    assert shown(started, done) == "✓ view notes.txt · 1.2 s\n"
    failed = event(ToolCompleted(tool_call_id=call, success=False, content="No such\nfile", error="failed"))
    assert shown(started, failed) == "✗ view notes.txt: No such file\n"


def test_a_command_in_the_background_is_named_with_the_way_to_follow_it() -> None:
    started = TaskStarted(task_id=TaskId("t1"), tool_call_id=ToolCallId("c"), command="make", flipped=True)
    assert shown(event(started)) == ("· It goes on in the background, task t1: holdfast tasks tail t1\n")
    elsewhere = Transcript(hints=Hints({"data_dir": "/a folder"}))
    at_once = TaskStarted(task_id=TaskId("t1"), tool_call_id=ToolCallId("c"), command="make")
    text = "".join(piece.text for piece in elsewhere.take(event(at_once)))
    assert text == "· It runs in the background, task t1: holdfast tasks tail t1 --data-dir '/a folder'\n"


@pytest.mark.parametrize(
    ("kind", "exit_code", "line"),
    [
        ("completed", 0, "✓ Task t1 completed · exit code 0 · 12.3 s · make all"),
        ("failed", 2, "✗ Task t1 failed · exit code 2 · 12.3 s · make all"),
        ("killed", 143, "■ Task t1 was killed · exit code 143 · 12.3 s · make all"),
        ("lost", None, "✗ Task t1 was lost · 12.3 s · make all"),
        (
            "stalled",
            None,
            "? Task t1 seems stuck: it writes nothing, as if it waited for input · 12.3 s · make all",
        ),
    ],
)
def test_news_of_a_task_is_one_line(kind: NoticeKind, exit_code: int | None, line: str) -> None:
    assert shown(event(TaskNotified(notice=notice(kind, exit_code=exit_code)))) == line + "\n"


def test_news_says_why_where_that_is_known_and_nothing_of_what_the_model_did_itself() -> None:
    late = notice("failed", description="The build", detail="It ran for longer than it was given.")
    text = shown(event(TaskNotified(notice=late)))
    assert text == "✗ Task t1 failed · 12.3 s · The build · It ran for longer than it was given.\n"
    assert shown(event(TaskNotified(notice=notice("killed", silent=True)))) == ""


def test_a_turn_without_a_typed_message_says_so() -> None:
    woken = event(TurnStarted(turn_id=TurnId("t"), woken=True))
    told = event(TaskNotified(notice=notice("completed", exit_code=0)))
    text = shown(delta("Before."), woken, told, delta("After."))
    assert text == (
        "Before.\n\n◆ Started by the news of a task, without a message.\n"
        "✓ Task t1 completed · exit code 0 · 12.3 s · make all\n\nAfter."
    )
    assert shown(event(TurnStarted(turn_id=TurnId("t")))) == ""


def test_a_permission_request_shows_all_arguments_of_the_call() -> None:
    call = ToolCallId("c")
    given = '{"path":"a.txt","file_text":"' + "line\\n" * 50 + 'the last"}'
    started = event(ToolStarted(tool_call_id=call, tool_name="create", arguments=given))
    asked = PermissionRequested(
        request_id=RequestId("r"), tool_call_id=call, tool_name="create", kind="write", subject="a.txt", rule="write"
    )
    text = shown(started, event(asked))
    assert text.startswith("? create wants to write a.txt (request r)\n  path: a.txt\n  file_text:\n  │ line\n")
    assert text.endswith("  │ the last\n")


def test_without_colour_there_are_no_codes() -> None:
    assert styled(Piece("good", "yes"), color=False) == "yes"
    assert styled(Piece("good", "a\nb"), color=True) == "\x1b[32ma\x1b[0m\n\x1b[32mb\x1b[0m"


# Lines of a width


def flowed(pieces: list[str], width: int) -> list[str]:
    flow = LineFlow(lambda character: 1)
    lines = [line for piece in pieces for line in flow.feed([Piece("text", piece)], width)]
    return ["".join(piece.text for piece in line) for line in (*lines, flow.rest)]


def test_lines_are_cut_at_spaces_also_when_a_word_comes_in_two_pieces() -> None:
    assert flowed(["one two thr", "ee four"], 10) == ["one two", "three four"]
    assert flowed(["abcdefghijkl"], 5) == ["abcde", "fghij", "kl"]
    assert flowed(["a\n\nb"], 5) == ["a", "", "b"]


@given(st.text(alphabet="ab \n", max_size=80), st.integers(1, 12))
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(text: str, width: int) -> None:
    lines = flowed([text], width)
    assert all(len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


# What people type


def test_only_a_plain_yes_is_a_yes() -> None:
    assert permission_answer("y") == ("approved", "")
    assert permission_answer(" YES ") == ("approved", "")
    assert permission_answer("s") == ("approved-for-session", "")
    assert permission_answer("n not there") == ("denied-interactively-by-user", "not there")
    assert permission_answer("no, use b.txt") == ("denied-interactively-by-user", "use b.txt")
    assert permission_answer("yes but first look") is None
    assert permission_answer("never mind") is None
    assert permission_answer("") is None


def test_a_number_picks_a_choice_and_other_words_are_free_text_where_that_is_allowed() -> None:
    asked = UserInputRequested(
        request_id=RequestId("r"), tool_call_id=ToolCallId("c"), question="?", choices=("A", "B")
    )
    assert question_answer("2", asked) == ("B", False)
    assert question_answer("b", asked) == ("B", False)
    assert question_answer("3", asked) == ("3", True)
    assert question_answer("neither", asked) == ("neither", True)
    closed = UserInputRequested(
        request_id=RequestId("r"), tool_call_id=ToolCallId("c"), question="?", choices=("A",), allow_freeform=False
    )
    assert question_answer("neither", closed) is None


def test_a_hint_can_be_pasted_as_it_is() -> None:
    hints = Hints({"database": None, "data_dir": "/a folder", "model": "openai/x", "model_base_url": "http://here/v1"})
    assert hints.command("requests") == "holdfast requests --data-dir '/a folder'"
    assert hints.command("chat") == "holdfast chat --data-dir '/a folder' --model-base-url http://here/v1"
    other = Hints({"model": "openrouter/x", "model_base_url": "http://here/v1"})
    assert other.command("chat") == "holdfast chat --model openrouter/x --model-base-url http://here/v1"
