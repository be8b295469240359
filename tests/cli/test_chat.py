"""`holdfast chat` as people use it: killed in the middle, stopped, typed at while it works, asked and answered."""

import re
import signal

from holdfast.app import Runtime
from holdfast.cli.transcript import INTERRUPTED
from holdfast.config import load
from tests.cli.processes import Place
from tests.cli.scripts import LONG, Valve, model


def without_notes(text: str) -> str:
    """A conversation without the lines that chat adds of its own."""
    lines = [line for line in text.splitlines() if not line.startswith(("holdfast ", "Continuing session"))]
    return "\n".join(lines).strip()


async def conversation_of(place: Place) -> str:
    """As somebody sees it who loads the latest session later."""
    listed = await place.run("sessions", "list", "--limit", "1")
    shown = await place.run("sessions", "show", listed.out.split()[0])
    assert shown.code == 0, shown.err
    return re.sub(r"^[\d,]+ tokens .*in the context.*\n", "", shown.out.split("\n", 2)[2]).strip()


# Killed


async def test_killed_in_mid_stream_it_goes_on_at_once_and_keeps_what_was_read(place: Place) -> None:
    valve = Valve(words=12)
    async with model(place, LONG, valve):
        async with place.piped("chat") as first:
            first.type("a long one")
            seen = await first.until("word11")
            await first.kill()
        valve.opened.set()
        async with place.piped("chat") as second:
            second.end_of_input()
            said = await second.ended()
        later = await conversation_of(place)
    read = seen[seen.index("word0") :].rstrip("\n")
    assert f"{read} {INTERRUPTED}" in said
    assert "Continuing session" in said
    assert "word39" in said
    assert re.search(r"word39 \(2-", said), "the second answer is another one, not the first one repeated"
    assert without_notes(said) == later


async def test_a_chat_that_watched_a_turn_and_one_that_loads_it_later_show_the_same(place: Place) -> None:
    valve = Valve(words=5)
    async with model(place, LONG, valve):
        async with place.piped("chat") as first:
            first.type("a long one")
            await first.until("word4")
            listed = await place.run("sessions", "list")
            async with place.piped("chat", "--session", listed.out.split()[0]) as watcher:
                await watcher.until("word4")
                await first.kill()
                valve.opened.set()
                await watcher.until("word39")
                watcher.end_of_input()
                watched = await watcher.ended()
        later = await conversation_of(place)
    assert INTERRUPTED in watched
    assert without_notes(watched) == later


async def test_a_message_typed_before_the_kill_is_answered_after_it(place: Place) -> None:
    valve = Valve(words=3)
    async with model(place, LONG, valve):
        async with place.terminal("chat") as first:
            await first.until("> ")
            first.type("a long one\r")
            await first.until("word2")
            first.type("and this too\r")
            await first.until("queued: and this too")
            first.child.kill()
            await first.ended()
        valve.opened.set()
        again = await place.run("chat")
    assert again.code == 0
    assert "> and this too (joined the running turn)" in again.out
    assert "You said and this too." in again.out


async def test_a_request_outlives_every_process_and_is_answered_from_another(place: Place) -> None:
    async with model(place):
        async with place.piped("chat") as first:
            first.type("write it")
            said = await first.until("(or deny)")
            await first.kill()
        request = re.findall(r"request (\w{8})", said)[0]
        assert request in (await place.run("requests")).out
        approved = await place.run("approve", request)
        assert approved.code == 0
        assert "To continue this session: holdfast chat" in approved.out
        twice = await place.run("deny", request)
        assert (twice.code, twice.out) == (1, "")
        assert "already answered by holdfast approve" in twice.err
        assert "[answered_already]" in twice.err
        assert not (place.work / "a.txt").exists()
        third = await place.run("chat")
        assert "✓ Approved by holdfast approve." in third.out
        assert "It says: Created file a.txt" in third.out
        assert (place.work / "a.txt").read_text() == "written"
        late = await place.run("approve", request)
        assert late.code == 1
        assert "[answered_already]" in late.err


async def test_a_request_that_a_stop_closed_differs_from_an_answered_one(place: Place) -> None:
    async with model(place):
        done = await place.run("chat", typed="write it\n/stop\n")
        request = re.findall(r"request (\w{8})", done.out)[0]
        late = await place.run("approve", request)
    assert (late.code, late.out) == (1, "")
    assert "[request_closed]" in late.err


async def test_a_request_is_answerable_in_the_chat_that_comes_after(place: Place) -> None:
    async with model(place):
        async with place.piped("chat") as first:
            first.type("write it")
            await first.until("(or deny)")
            await first.kill()
        async with place.terminal("chat") as second:
            await second.until("approve? [y]es / [s]ession / [n]o >")
            second.type("n not now\r")
            await second.until("Denied: not now")
            await second.until("It says: The user rejected this tool call. not now")
    assert not (place.work / "a.txt").exists()


# Before a terminal


async def test_ctrl_c_stops_the_turn_and_the_next_message_works(place: Place) -> None:
    valve = Valve(words=6)
    async with model(place, LONG, valve), place.terminal("chat") as terminal:
        await terminal.until("ready")
        terminal.type("a long one\r")
        await terminal.until("word5")
        terminal.type("\x03")
        await terminal.until("■ Stopped.")
        assert INTERRUPTED in terminal.text
        valve.opened.set()
        terminal.type("and now?\r")
        await terminal.until("You said and now?.")
        await terminal.until("── ready", after="You said and now?.")
        terminal.type("\x03")
        await terminal.until("Press Ctrl-C again to leave")
        terminal.type("\x03")
        assert await terminal.ended() == 0


async def test_a_line_typed_while_it_works_is_queued_and_then_answered(place: Place) -> None:
    valve = Valve(words=4)
    async with model(place, LONG, valve), place.terminal("chat") as terminal:
        await terminal.until("ready")
        terminal.type("a long one\r")
        await terminal.until("word3")
        terminal.type("one more thing\r")
        await terminal.until("queued: one more thing")
        valve.opened.set()
        await terminal.until("> one more thing (joined the running turn)")
        await terminal.until("You said one more thing.")
        terminal.type("\x04")
        assert await terminal.ended() == 0


async def test_a_stop_gives_what_was_queued_back_to_the_line(place: Place) -> None:
    valve = Valve(words=4)
    async with model(place, LONG, valve), place.terminal("chat") as terminal:
        await terminal.until("ready")
        terminal.type("a long one\r")
        await terminal.until("word3")
        terminal.type("never mind that\r")
        await terminal.until("queued: never mind that")
        terminal.type("\x03")
        await terminal.until("■ Stopped.")
        valve.opened.set()
        terminal.type(", but this\r")
        await terminal.until("You said never mind that, but this.")


async def test_approvals_and_questions_are_answered_in_line(place: Place) -> None:
    async with model(place), place.terminal("chat") as terminal:
        await terminal.until("ready")
        terminal.type("write it\r")
        await terminal.until("? create wants to write a.txt")
        await terminal.until("│ +written")
        await terminal.until("approve?")
        terminal.type("y\r")
        await terminal.until("✓ create a.txt")
        await terminal.until("It says: Created file a.txt")
        terminal.type("ask me\r")
        await terminal.until("2. Blue")
        await terminal.until("answer [1-2] >")
        terminal.type("2\r")
        await terminal.until("So: User selected: Blue")
    assert (place.work / "a.txt").read_text() == "written"


async def test_an_approval_for_the_session_is_not_asked_for_again(place: Place) -> None:
    async with model(place), place.terminal("chat") as terminal:
        await terminal.until("ready")
        terminal.type("write it\r")
        await terminal.until("approve?")
        terminal.type("s\r")
        await terminal.until("It says:")
        terminal.type("write it again\r")
        await terminal.until("It says:", times=2)
        assert terminal.text.count("? create wants to write") == 1


async def test_hostile_text_never_reaches_the_terminal(place: Place) -> None:
    async with model(place):
        async with place.terminal("chat") as terminal:
            await terminal.until("ready")
            terminal.type("hostile\r")
            await terminal.until("\\u001b]0;owned\\u0007\\u001b[2Jdone")
            assert "\x1b]0;" not in terminal.raw
            assert "\x07" not in terminal.raw
            assert "\x1b[2J" not in terminal.raw
        for command in (("chat",), ("run", "hostile")):
            done = await place.run(*command, typed="hostile\n")
            assert "\\u001b]0;owned\\u0007\\u001b[2Jdone" in done.out
            assert "\x1b" not in done.out


async def test_no_color_is_respected(place: Place) -> None:
    async with model(place), place.terminal("chat", NO_COLOR="1") as terminal:
        await terminal.until("ready")
        terminal.type("hello\r")
        await terminal.until("You said hello.")
        assert re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.raw) is None


async def test_a_simple_terminal_is_enough(place: Place) -> None:
    async with model(place), place.terminal("chat", term="dumb") as terminal:
        await terminal.until("/help")
        terminal.type("hello\n")
        await terminal.until("You said hello.")
        terminal.type("write it\n")
        await terminal.until("? create wants to write a.txt")
        terminal.type("y\n")
        await terminal.until("It says: Created file a.txt")
        assert "\x1b" not in terminal.raw
        assert terminal.text.count("hello") == 2, "what was typed, and the answer"
        terminal.type("\x04")
        assert await terminal.ended() == 0


# Without a terminal


async def test_each_line_of_a_pipe_is_a_message_and_its_end_waits_for_the_answer(place: Place) -> None:
    async with model(place):
        done = await place.run("chat", typed="first\nsecond")
    assert done.code == 0
    assert done.err == ""
    assert [line for line in done.out.splitlines() if line.startswith(("> ", "You said"))] == [
        "> first",
        "You said first.",
        "> second",
        "You said second.",
    ]


async def test_a_chat_in_a_pipe_says_how_to_answer_and_the_request_stays(place: Place) -> None:
    async with model(place):
        done = await place.run("chat", typed="write it\n")
        assert done.code == 0
        assert "To answer: holdfast approve" in done.out
        assert "The work is kept" in done.out
        request = re.findall(r"request (\w{8})", done.out)[0]
        worked = await place.run("approve", request, "--work")
        assert worked.code == 0
        assert "It says: Created file a.txt" in worked.out
        assert "> write it" not in worked.out, "only what is new is shown"


async def test_a_finished_session_is_not_gone_on_with_unless_it_is_named(place: Place) -> None:
    async with model(place):
        first = await place.run("chat", typed="first\n")
        other = await place.run("chat", typed="second\n")
        assert "Continuing session" not in other.out
        session = re.findall(r"session (\w{8})", first.out)[0]
        named = await place.run("chat", "--session", session, typed="third\n")
    assert f"Continuing session {session}" in named.out
    assert "> first" in named.out
    assert "You said third." in named.out


async def test_unfinished_work_of_another_folder_is_left_alone(place: Place) -> None:
    async with model(place):
        await place.run("chat", typed="write it\n")
        elsewhere = place.work / "elsewhere"
        elsewhere.mkdir()
        done = await place.run("chat", "--dir", str(elsewhere), typed="hello\n")
        assert "Continuing session" not in done.out
        new = await place.run("chat", "--new", typed="hello\n")
        assert "Continuing session" not in new.out
        back = await place.run("chat")
        assert "it waits for an answer" in back.out


async def test_slash_commands_say_and_do_what_they_are_called(place: Place) -> None:
    typed = (
        "hello\n/title A new name\n/usage\n/queue\n/model\n/model nonsense\n/sessions\n/new\n/help\n/quit\nnever read\n"
    )
    async with model(place):
        done = await place.run("chat", typed=typed)
    assert done.code == 0
    assert "The title is now “A new name”." in done.out
    assert "1 model call" in done.out
    assert "Nothing is queued." in done.out
    assert "The model is openai/x." in done.out
    assert "There is no model 'nonsense'." in done.out
    assert re.search(r"idle +A new name", done.out)
    assert len(set(re.findall(r"· session (\w{8})", done.out))) == 2
    assert "/stop " in done.out
    assert "never read" not in done.out


async def test_an_earlier_conversation_is_shown_in_part_with_the_way_to_the_rest(place: Place) -> None:
    async with model(place):
        first = await place.run("chat", typed="one\ntwo\nthree\nfour\nfive\n")
        session = re.findall(r"session (\w{8})", first.out)[0]
        again = await place.run("chat", "--session", session)
    assert "2 earlier turns: holdfast sessions show" in again.out
    assert "> two" not in again.out
    assert "> three" in again.out


# Beside the conversation


async def test_an_open_chat_is_an_attachment_that_other_processes_see(place: Place) -> None:
    async with model(place), place.terminal("chat") as terminal:
        await terminal.until("ready")
        terminal.type("hello\r")
        await terminal.until("You said hello.")
        config = load({"data_dir": str(place.data)}, {})
        async with Runtime(config=config, work=False) as runtime:
            (found,) = [session async for session in runtime.sessions()]
            key = runtime.open(found.id).key
            (present,) = await runtime.store.attachments(key)
            assert present.capabilities == ("permission", "question")
            terminal.type("\x04")
            assert await terminal.ended() == 0
            assert await runtime.store.attachments(key) == ()


async def test_told_to_end_it_keeps_the_work_and_says_how_to_come_back(place: Place) -> None:
    valve = Valve(words=4)
    async with model(place, LONG, valve), place.piped("chat") as chat:
        chat.type("a long one")
        await chat.until("word3")
        chat.terminate()
        said = await chat.ended(128 + signal.SIGTERM)
        assert "The work is kept. Come back to it with:" in said
        valve.opened.set()
        assert "word39" in (await place.run("chat")).out
