"""A person sees all of what they approve, with escapes for characters that a screen would obey or hide."""

import json
import re
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import request_lines
from holdfast.cli.escapes import EMOJI, HIDDEN, LINES, has_right_to_left, visible
from holdfast.cli.line_flow import LineFlow
from holdfast.cli.request_lines import BAR
from holdfast.cli.task_lines import ending, task_line
from holdfast.cli.transcript import Piece, Transcript, notice_line, one_line
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Position, RequestId, TaskId, ToolCallId
from holdfast.events.request import ExternalToolRequested, PermissionKind, PermissionRequested, UserInputRequested
from holdfast.events.task import TaskNotice
from holdfast.events.tool import ToolStarted
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from holdfast.protocol.request import RequestView
from holdfast.protocol.task import TaskView
from holdfast.tools.diffs import is_whole, unified
from tests.cli.processes import COLUMNS, Place
from tests.cli.scripts import model
from tests.cli.slow_commands import SLOW, Gate, started

CASES = json.loads((Path(__file__).parents[2] / "web" / "test" / "escapes.json").read_text(encoding="utf-8"))

BIDI = "\u202e\u2066\u200f"
HOSTILE = f"{BIDI}\x1b]0;owned\x07\x1b[2J\x9b8m\r\x08\x7f\x00\u200b\u2028\U000e0041evil"


# The one function


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_characters_that_a_screen_would_obey_or_hide_are_escaped(case: dict[str, str]) -> None:
    assert visible(case["text"], keep=case["keep"]) == case["shown"]
    assert visible(case["shown"], keep=case["keep"]) == case["shown"]


def test_the_page_and_the_terminal_have_the_same_table() -> None:
    page = (Path(__file__).parents[2] / "web" / "src" / "view" / "escapes.ts").read_text(encoding="utf-8")
    ranges = re.findall(r"\[0x([0-9a-f]+), 0x([0-9a-f]+)\]", page)
    assert [(int(first, 16), int(last, 16)) for first, last in ranges] == list(HIDDEN)


def test_no_control_bidi_or_zero_width_character_is_missing_from_the_table() -> None:
    """Of Unicode's format characters only those are left out that are drawn, such as the Arabic sign of a number."""
    drawn = set(range(0x600, 0x606)) | {0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    for code in range(0x110000):
        character = chr(code)
        hides = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and code not in drawn
        turns = unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        if hides or turns:
            assert visible(character, keep="") != character, hex(code)


NOT_DRAWN = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
    *((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF)),
    *((0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
    *((0x2800, 0x2800), (0x13430, 0x1345F), (0x16FE4, 0x16FE4), (0x1D159, 0x1D159)),
)
"""Unicode's Default_Ignorable_Code_Point, which Python has no table of, and signs that are drawn as nothing."""


def test_nothing_that_is_not_drawn_is_missing_from_the_table() -> None:
    for first, last in NOT_DRAWN:
        for code in range(first, last + 1):
            assert visible(chr(code)) != chr(code), hex(code)


@given(st.text())
def test_nothing_hidden_is_left_and_everything_else_is(text: str) -> None:
    shown = visible(text)
    assert is_plain(shown)
    shown.encode()  # a lone surrogate would be refused
    assert visible(shown) == shown
    if not any("\ufe00" <= sign <= "\ufe0f" for sign in text):
        assert shown == "".join(visible(sign) if is_hidden(sign) else sign for sign in text)


def is_hidden(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in HIDDEN)


def is_plain(text: str) -> bool:
    return not any(is_hidden(character) and character not in LINES for character in re.sub(EMOJI, "", text))


# What is asked, in lines


def asks(kind: PermissionKind, subject: str, *, tool: str = "exec", **details: Any) -> PermissionRequested:
    return PermissionRequested(
        request_id=RequestId("request-1"),
        tool_call_id=ToolCallId("c"),
        tool_name=tool,
        kind=kind,
        subject=subject,
        rule=kind,
        details=details,
    )


def whole(asked: request_lines.OpenedRequest, arguments: str = "") -> str:
    return "\n".join((request_lines.first_line(asked), *request_lines.lines(asked, arguments)))


COMMANDS = st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=600)


@given(COMMANDS)
def test_every_character_of_a_command_is_in_what_is_asked(command: str) -> None:
    text = whole(asks("shell", command), json.dumps({"command": command, "timeout": 5}))
    assert is_plain(text)
    for line in visible(command).split("\n"):
        assert line in text
    if len(visible(command)) > request_lines.SHORT:
        assert [BAR + line for line in visible(command).split("\n")] == [
            line for line in text.split("\n") if line.startswith(BAR)
        ]
    assert "timeout: 5" in text


@given(st.dictionaries(st.text(min_size=1, max_size=20), COMMANDS, max_size=4))
def test_every_argument_of_a_tool_is_in_what_is_asked(arguments: dict[str, str]) -> None:
    text = whole(asks("custom-tool", "deploy", tool="deploy"), json.dumps(arguments))
    assert is_plain(text)
    for name, value in arguments.items():
        assert visible(name, keep="") in text
        assert all(line in text for line in visible(value).split("\n"))


def test_another_command_than_the_one_that_is_asked_about_is_shown_beside_it() -> None:
    assert "  command: rm -rf /" in whole(asks("shell", "ls"), '{"command": "rm -rf /"}')


def test_a_diff_stands_for_the_contents_only_if_all_of_the_change_is_in_it() -> None:
    new = "".join(f"line {number}\n" for number in range(40))
    arguments = json.dumps({"path": "a.txt", "file_text": new})
    diff = unified("", new, "a.txt")
    shown = whole(asks("write", "a.txt", tool="create", diff=diff), arguments)
    assert shown.count("line 39") == 1
    assert f"{BAR}+line 39" in shown
    for longer in ("x" * 80 + "\n") * 2_000, "y\n" * 30_000:
        cut = unified("", longer + "the end", "a.txt")
        assert not is_whole(cut)
        arguments = json.dumps({"path": "a.txt", "file_text": longer + "the end"})
        assert f"{BAR}the end" in whole(asks("write", "a.txt", tool="create", diff=cut), arguments)


def test_a_diff_can_not_be_made_to_look_cut_or_whole_by_what_is_in_it() -> None:
    assert is_whole(unified("", "(… and more)\n", "a"))
    assert is_whole(unified("(… and more)\n", "a\n(… and more)\n", "(too much to be shown: "))


def test_a_warning_has_a_line_that_no_command_can_imitate() -> None:
    text = whole(asks("shell", "a\n  ! fine\n✓ Approved.", warning="Read all of it.")).split("\n")
    assert [line for line in text if line.startswith("  ! ")] == ["  ! Read all of it."]
    assert not any(line.startswith("✓") for line in text)


@pytest.mark.parametrize("letters", ["א ב", "\u0627 \u0628", "\u0661 \u0662", "\u07ca \u07cb", "\U0001e900 \U0001e901"])
def test_a_warning_of_right_to_left_letters_stands_before_the_text_they_reorder(letters: str) -> None:
    long = "x" * 200
    for asked, arguments in (
        (asks("shell", f"cp {letters}"), ""),
        (asks("shell", f"{long}\ncp {letters}"), ""),
        (asks("write", letters, tool="create"), ""),
        (asks("write", "a.txt", tool="create", diff=f"+cp {letters}\n"), ""),
        (asks("custom-tool", "deploy", tool="deploy"), json.dumps({"from": letters})),
        (asks("custom-tool", "deploy", tool="deploy"), json.dumps({letters: 1}, ensure_ascii=False)),
        (
            ExternalToolRequested(
                request_id=RequestId("r"), tool_call_id=ToolCallId("c"), tool_name="t", arguments=f'["{letters}"]'
            ),
            "",
        ),
    ):
        first = request_lines.lines(asked, arguments)[0]
        assert first.startswith("  ! This has letters that are written from right to left")


def test_letters_that_reorder_nothing_have_no_warning() -> None:
    for command in ("cp a b", "cp é 日本語 😀", f"cp {BIDI} b"):
        assert "from right to left" not in whole(asks("shell", command), json.dumps({"command": command}))
    question = UserInputRequested(request_id=RequestId("r"), tool_call_id=ToolCallId("c"), question="א?")
    assert "from right to left" not in whole(question), "people are asked in their own language"


def test_every_letter_that_is_written_from_right_to_left_is_found() -> None:
    for code in range(0x110000):
        letter = chr(code)
        if unicodedata.bidirectional(letter) in ("R", "AL", "AN") and not is_hidden(letter):
            assert has_right_to_left(letter), hex(code)


def test_a_long_line_goes_on_behind_its_bar() -> None:
    flow = LineFlow(lambda character: 1)
    spoof = "echo " + "a" * 40 + " ✓ Approved. " + "b" * 200
    lines = ["".join(piece.text for piece in line) for line in flow.feed([Piece("note", f"{BAR}{spoof}\n")], 30)]
    assert len(lines) > 5
    assert all(line.startswith(BAR) and len(line) <= 30 for line in lines)
    assert "".join(line.removeprefix(BAR) for line in lines).replace(" ", "") == spoof.replace(" ", "")


def test_questions_and_tools_of_clients_are_shown_whole_and_plain() -> None:
    long = "?" * 500
    question = UserInputRequested(
        request_id=RequestId("r"), tool_call_id=ToolCallId("c"), question=HOSTILE + long, choices=(long + "1", HOSTILE)
    )
    assert long in whole(question)
    assert long + "1" in whole(question)
    tool = ExternalToolRequested(
        request_id=RequestId("r"), tool_call_id=ToolCallId("c"), tool_name=HOSTILE, arguments=json.dumps({"a": long})
    )
    assert long in whole(tool)
    for text in (whole(question), whole(tool)):
        assert is_plain(text)
        assert "\\u202e" in text


def test_a_transcript_shows_all_of_it_or_says_that_it_does_not() -> None:
    command = "\n".join(f"echo {number}" for number in range(100))
    events = [
        Event(Position(1), EventId("e"), 0, ToolStarted(tool_call_id=ToolCallId("c"), tool_name="exec", arguments="")),
        Event(Position(2), EventId("f"), 0, asks("shell", command)),
    ]
    everything = Transcript()
    text = "".join(piece.text for event in events for piece in everything.take(event))
    assert f"{BAR}echo 99\n" in text
    assert not everything.unshown
    short_of_room = Transcript(fits=lambda lines: len(lines) < 20)
    text = "".join(piece.text for event in events for piece in short_of_room.take(event))
    assert "echo 99" not in text
    assert "only the beginning (100 lines" in text
    assert f"{BAR}echo 99\n" in short_of_room.unshown[RequestId("request-1")]


def test_the_lines_of_a_task_are_plain_and_a_chat_escapes_every_line_once_more() -> None:
    notice = TaskNotice(task_id=TaskId(HOSTILE), kind="failed", command=HOSTILE, detail=HOSTILE)
    described = msgspec.structs.replace(notice, description=HOSTILE)
    task = TaskView(
        id=TaskId(HOSTILE),
        session_id=HOSTILE,
        command=HOSTILE,
        description="",
        status="failed",
        foreground=False,
        exit_code=1,
        detail=HOSTILE,
        started_at=0,
        ended_at=1,
        duration_ms=1,
        tool_call_id=HOSTILE,
        working_directory=HOSTILE,
        output_file=HOSTILE,
        alias=HOSTILE,
    )
    for text in (
        notice_line(notice)[1],
        notice_line(described)[1],
        ending(task),
        *(task_line(task, width=width) for width in (80, 200)),
        task_line(msgspec.structs.replace(task, command="", description=HOSTILE), width=200),
        "".join(piece.text for piece in Transcript().say("note", HOSTILE)),
    ):
        assert is_plain(text)
        assert "\\u001b]0;owned" in text


# Real terminals

LONG = "echo start; " + "true; " * 60 + "echo hidden-tail > tail.txt"
"""One line of some 400 characters; the end of it is what matters."""

VERY_LONG = "\n".join(["echo start", *(f"true {number}" for number in range(300)), "echo hidden-tail > tail.txt"])

WIDE = f"echo {'x' * 1_000} && echo far-to-the-right"

SPOOFED = f"cat notes.txt {BIDI}# \x1b[8mrm -rf x\x1b[0m"


def runs(**commands: str) -> Script:
    rules = [
        Rule(when=word, replies=(Reply(tool_calls=(ScriptedCall("exec", {"command": command}),)), Reply(text="Done.")))
        for word, command in commands.items()
    ]
    return Script(rules=(*rules, Rule(replies=(Reply(text="You said {user}."),))))


async def test_all_of_a_long_command_is_on_the_screen_when_it_is_approved(place: Place) -> None:
    async with model(place, runs(go=LONG)), place.terminal("chat") as terminal:
        await terminal.until("> ")
        terminal.type("go\r")
        await terminal.until("[y]es")
        joined = "".join(line.strip("│ ") for line in terminal.text.splitlines())
        assert "hidden-tail" in joined
        terminal.type("y\r")
        await terminal.until("Done.")
    assert (place.work / "tail.txt").exists()


async def test_a_yes_is_not_offered_before_everything_was_shown(place: Place) -> None:
    async with model(place, runs(go=VERY_LONG)), place.terminal("chat", PAGER="cat") as terminal:
        await terminal.until("> ")
        terminal.type("go\r")
        await terminal.until("read it first: /show")
        assert "[y]es" not in terminal.text
        assert "hidden-tail" not in terminal.text
        for answer in ("y\r", "s\r"):
            terminal.type(answer)
            await terminal.until("Not approved: only the beginning was shown", times=1 if answer == "y\r" else 2)
        assert not (place.work / "tail.txt").exists()
        terminal.type("/show\r")
        await terminal.until("│ echo hidden-tail > tail.txt")
        await terminal.until("[y]es")
        terminal.type("y\r")
        await terminal.until("Done.")
    assert (place.work / "tail.txt").exists()


@pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")
async def test_the_pager_is_less_and_what_comes_meanwhile_is_shown_afterwards(place: Place) -> None:
    async with model(place, runs(go=VERY_LONG)), place.terminal("chat", PAGER="") as terminal:
        await terminal.until("> ")
        terminal.type("go\r")
        await terminal.until("read it first: /show")
        terminal.type("/show\r")
        await terminal.until("true 25", after="/show")
        terminal.type("G")
        await terminal.until("hidden-tail")
        terminal.type("q")
        await terminal.until("[y]es")
        terminal.type("n\r")
        await terminal.until("✗ Denied")
    assert not (place.work / "tail.txt").exists()


async def test_without_a_pager_the_request_is_shown_above_the_prompt(place: Place) -> None:
    async with model(place, runs(go=VERY_LONG)), place.terminal("chat", PAGER="no-such-pager-at-all") as terminal:
        await terminal.until("> ")
        terminal.type("go\r")
        await terminal.until("read it first: /show")
        terminal.type("/show\r")
        await terminal.until("│ echo hidden-tail > tail.txt")
        await terminal.until("[y]es")


async def test_a_simple_terminal_shows_everything_at_once(place: Place) -> None:
    async with model(place, runs(go=VERY_LONG)), place.terminal("chat", term="dumb") as terminal:
        terminal.type("go\n")
        await terminal.until("│ echo hidden-tail > tail.txt")


async def test_requests_shows_everything_and_says_it_as_json_too(place: Place) -> None:
    async with model(place, runs(go=VERY_LONG, wide=WIDE, spoof=SPOOFED)):
        await place.run("chat", typed="wide\n")
        asked = await place.run("chat", "--new", typed="go\n")
        assert "│ echo hidden-tail > tail.txt" in asked.out
        spoofed = await place.run("chat", "--new", typed="spoof\n")
        listed = await place.run("requests")
        as_json = await place.run("requests", "--json")
        async with place.terminal("requests", PAGER="cat") as terminal:
            await terminal.until("│ echo hidden-tail > tail.txt")
            assert await terminal.ended() == 0
        requests = [json.loads(line) for line in as_json.out.splitlines()]
        request = next(found for found in requests if "hidden" in found["details"]["subject"])
        approved = await place.run("approve", request["id"], "--work")
    assert "│ echo hidden-tail > tail.txt" in listed.out
    assert f"│ {WIDE}\n" in listed.out, "a line is whole, too"
    assert "│ echo hidden-tail > tail.txt" in approved.out
    for text in (listed.out, spoofed.out):
        assert is_plain(text)
        assert "\\u202e\\u2066\\u200f# \\u001b[8mrm -rf x" in text
    subjects = {found["details"]["subject"] for found in requests}
    assert subjects == {VERY_LONG, WIDE, SPOOFED}, "JSON has the characters themselves"
    assert set(request) == {*RequestView.__struct_fields__, "session_id", "arguments"}
    assert json.loads(request["arguments"]) == {"command": VERY_LONG}
    assert (request["kind"], request["details"]["permission"], request["details"]["tool_name"]) == (
        "permission",
        "shell",
        "exec",
    )


async def test_nothing_hostile_reaches_a_terminal_from_a_title_a_file_or_a_diff(place: Place) -> None:
    name = f"a{BIDI}txt.exe"
    script = Script(
        rules=(
            Rule(
                when="write",
                replies=(
                    Reply(text=HOSTILE, tool_calls=(ScriptedCall("create", {"path": name, "file_text": HOSTILE}),)),
                    Reply(text=HOSTILE),
                ),
            ),
        )
    )
    async with model(place, script), place.terminal("chat") as terminal:
        await terminal.until("> ")
        terminal.type("write\r")
        await terminal.until("[y]es")
        terminal.type("y\r")
        await terminal.until("evil", times=3)
        terminal.type(f"/title {BIDI}title\r")
        await terminal.until("title", after="The title is now")
        drawn = terminal.raw
    assert "\x1b]0;owned" not in drawn
    assert not any(sign in drawn.replace(f"/title {BIDI}title", "") for sign in (*BIDI, "\u200b", "\u2028", "\x9b"))
    assert "\\u202e\\u2066\\u200f" in terminal.text
    listed = await place.run("sessions", "list")
    shown = await place.run("sessions", "show", listed.out.split()[0])
    for text in (listed.out, shown.out):
        assert is_plain(text)
        assert "\\u202e\\u2066\\u200ftitle" in text


async def test_the_command_of_a_task_is_plain_wherever_tasks_are_shown(place: Place) -> None:
    Gate(place)
    calls = (ScriptedCall("exec", {"command": f"read line < gate # {SPOOFED}", "run_in_background": True}),)
    script = Script(rules=(Rule(replies=(Reply(tool_calls=calls), Reply(text="It runs."))),))
    escaped = "cat notes.txt \\u202e\\u2066\\u200f# \\u001b[8mrm -rf x\\u001b[0m"
    async with model(place, script):
        task = await started(place)
        shown, listed = await place.run("tasks", "show", task), await place.run("tasks", "list")
        narrow = await place.run("tasks", "list", COLUMNS="80")
        async with place.terminal(
            "chat", "--session", (await place.run("sessions", "list")).out.split()[0]
        ) as terminal:
            await terminal.until("> ")
            terminal.type("/tasks\r")
            await terminal.until(task, after="/tasks")
        await place.run("tasks", "kill", task)
    for text in (shown.out, listed.out, narrow.out):
        assert "read line < gate" in text
        assert is_plain(text)
    assert escaped in shown.out, "all of it"
    assert not any(sign in terminal.raw for sign in BIDI)


async def test_a_tail_on_a_terminal_shows_what_the_terminal_would_obey(place: Place) -> None:
    """In a file or a pipe it is as it was written."""
    gate = Gate(place)
    async with model(place, SLOW):
        task = await started(place, "hostile")
        async with place.terminal("tasks", "tail", task) as terminal:
            await terminal.until("\\u001b[2Jxone")
            await gate.let_go()
            await terminal.until("two")
            assert await terminal.ended() == 0
        assert "\x1b[2J" not in terminal.raw
        assert (await place.run("tasks", "tail", task)).out == "\x1b[2Jxone\ntwo\n"


def test_a_title_is_one_plain_line() -> None:
    assert one_line(f"a\nb{BIDI}\tc") == "a b\\u202e\\u2066\\u200f c"
    assert len(one_line("x" * COLUMNS * 10)) == 200
