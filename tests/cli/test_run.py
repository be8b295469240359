"""`holdfast run`: the answer on stdout, what became of it as the exit status, and nobody asked."""

import asyncio
import json
import signal

from holdfast.protocol.event import EventView
from tests.cli.processes import Place
from tests.cli.scripts import LONG, Valve, model


async def test_the_answer_is_all_that_is_printed(place: Place) -> None:
    async with model(place):
        done = await place.run("run", "hello")
    assert done == (0, "You said hello.\n", "")


async def test_the_prompt_may_come_from_stdin(place: Place) -> None:
    async with model(place):
        done = await place.run("run", "-", typed="from a pipe")
    assert done.out == "You said from a pipe.\n"


async def test_run_denies_calls_that_no_rule_allows_and_runs_the_others(place: Place) -> None:
    async with model(place):
        denied = await place.run("run", "write it")
        assert denied.code == 0
        assert "Permission denied" in denied.out
        assert not (place.work / "a.txt").exists()
        elsewhere = await place.run("run", "write it", "--allow", "write(docs/*)")
        assert "Permission denied" in elsewhere.out
        simulated = await place.run("run", "write it", "--allow", "write", "--dry-run")
        assert simulated.code == 0
        assert not (place.work / "a.txt").exists()
        allowed = await place.run("run", "write it", "--allow", "write")
    assert allowed.out == "It says: Created file a.txt with 7 characters\n"
    assert (place.work / "a.txt").read_text() == "written"


async def test_json_has_one_object_to_a_line_and_the_result_comes_last(place: Place) -> None:
    async with model(place):
        done = await place.run("run", "hello", "--json")
    assert done.code == 0
    lines = [json.loads(line) for line in done.out.splitlines()]
    events = [line["event"] for line in lines if line["type"] == "event"]
    deltas = [line for line in lines if line["type"] == "delta"]
    assert all(set(event) == set(EventView.__struct_fields__) for event in events)
    assert all(set(line) == {"type", "message_id", "block", "kind", "text"} for line in deltas)
    assert [event["type"] for event in events][:2] == ["holdfast.turn_started", "user.message"]
    assert events[-1]["type"] == "holdfast.turn_ended"
    assert [event["position"] for event in events] == sorted(event["position"] for event in events)
    assert "".join(line["text"] for line in deltas) == "You said hello."
    result = lines[-1]
    assert set(result) == {"type", "session_id", "turn_id", "reason", "text", "error", "tasks"}
    assert result["tasks"] == []
    assert (result["type"], result["reason"], result["text"]) == ("result", "completed", "You said hello.")
    assert [line["type"] for line in lines].count("result") == 1


async def test_a_failed_turn_is_an_exit_status_and_a_sentence(place: Place) -> None:
    async with model(place):
        failed = await place.run("run", "refuse this")
        assert (failed.code, failed.out) == (4, "")
        assert "[model_refused]" in failed.err
        as_json = await place.run("run", "refuse this", "--json")
    assert as_json.code == 4
    assert json.loads(as_json.out.splitlines()[-1])["error"]["code"] == "model_refused"


async def test_out_of_time_it_leaves_and_another_process_goes_on(place: Place) -> None:
    valve = Valve(words=3)
    async with model(place, LONG, valve):
        late = await place.run("run", "a long one", "--timeout", "1.5")
        assert late.code == 5
        assert "[timed_out]" in late.err
        back = late.err.split("the database: holdfast ")[1].split(" --data-dir")[0].split()
        assert back[:2] == ["chat", "--session"]
        valve.opened.set()
        again = await place.run(*back)
    assert again.code == 0
    assert "word39" in again.out


async def test_ctrl_c_stops_the_turn(place: Place) -> None:
    valve = Valve(words=3)
    async with model(place, LONG, valve):
        child = await place.start("run", "a long one", "--json")
        assert child.stdout is not None
        async with asyncio.timeout(20):
            while b"word2" not in await child.stdout.readline():
                pass
            child.send_signal(signal.SIGINT)
            out, err = await child.communicate()
    assert child.returncode == 3, err
    assert json.loads(out.splitlines()[-1])["reason"] == "stopped"
    assert b"[stopped]" in err


async def test_an_unattended_question_is_shown_and_kept(place: Place) -> None:
    async with model(place):
        waits = await place.run("run", "ask me")
        assert waits.code == 6
        assert "holdfast requests --session" in waits.err
        listed = await place.run("requests")
        request = listed.out.split()[0]
        wrong = await place.run("approve", request)
        assert wrong.code == 2
        assert "[wrong_answer]" in wrong.err
        answered = await place.run("answer", request, "2", "--work")
    assert answered.code == 0
    assert "So: User selected: Blue" in answered.out


async def test_before_a_terminal_the_answer_streams(place: Place) -> None:
    valve = Valve(words=3)
    async with model(place, LONG, valve), place.terminal("run", "a long one") as terminal:
        await terminal.until("word2")
        assert "word39" not in terminal.text
        valve.opened.set()
        assert await terminal.ended() == 0
        await terminal.until("word39")


async def test_a_session_goes_on_by_its_id(place: Place) -> None:
    async with model(place):
        first = await place.run("run", "hello", "--json")
        session = json.loads(first.out.splitlines()[-1])["session_id"]
        second = await place.run("run", "again", "--session", session[:8], "--json")
        assert json.loads(second.out.splitlines()[-1])["session_id"] == session
        refused = await place.run("run", "again", "--session", session, "--allow", "write")
    assert refused.code == 2
    assert "[option_not_usable]" in refused.err
