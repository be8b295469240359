"""Compactions and pinned messages at the command line: asked for, shown where they stand, and told in the usage."""

import json
import re

import msgspec

from holdfast.cli.activity import SessionActivity
from holdfast.cli.context_lines import end_line, outcome_line, start_line
from holdfast.cli.transcript import Transcript
from holdfast.events.compaction import CompactionEnded, CompactionStarted
from holdfast.events.event import Event
from holdfast.events.ids import CompactionId, EventId, Position
from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Reply, Rule, Script
from holdfast.protocol.compaction import Compacted
from holdfast.session.state import Phase
from tests.cli.processes import Place
from tests.cli.scripts import model

USAGE = TokenUsage(input_tokens=4_000, output_tokens=100, cache_read_tokens=3_000)
TALK = Script(
    rules=(Rule(replies=(Reply(text="You said {user}. " * 50, usage=USAGE),)),), summary=Reply(text="## Goal\nTo talk.")
)

ID = CompactionId("c")


async def session_of(place: Place, *prompts: str) -> str:
    done = await place.run("chat", "--new", typed="\n".join((*prompts, "")))
    assert done.code == 0, done.err
    listed = await place.run("sessions", "list", "--limit", "1", "--json")
    return str(json.loads(listed.out)["id"])


async def test_a_chat_compacts_pins_and_tells_how_full_the_context_is(place: Place) -> None:
    typed = "/compact\none\nnever push\nthree\n/pin push\n/compact Keep the rule.\n/usage\n/unpin\n/unpin\n"
    async with model(place, TALK):
        done = await place.run("chat", typed=typed)
    assert done.code == 0
    assert "[nothing_to_compact]" in done.out
    assert "Pinned: “never push”" in done.out
    assert "· Context summarised: 4," in done.out
    assert re.search(r"input tokens \(\d+ % from the cache\)", done.out)
    assert "of 128,000 (" in done.out
    assert "1 compaction, 1 pinned message" in done.out
    assert "A message was unpinned." in done.out
    assert "[message_not_found]" in done.out


async def test_a_session_is_compacted_and_a_message_pinned_by_a_command(place: Place) -> None:
    async with model(place, TALK):
        session = await session_of(place, "one", "never push", "three")
        pinned = await place.run("sessions", "pin", session[:6], "push")
        compacted = await place.run("sessions", "compact", session[:6], "--instructions", "Keep the rule.", "--json")
        again = await place.run("sessions", "compact", session[:6])
        unpinned = await place.run("sessions", "unpin", session[:6], "push")
        shown = await place.run("sessions", "show", session)
        facts = json.loads((await place.run("sessions", "show", session, "--json")).out)
    assert (pinned.code, unpinned.code) == (0, 0)
    receipt = json.loads(compacted.out)
    assert (receipt["outcome"], receipt["summary"]) == ("compacted", "## Goal\nTo talk.")
    assert (again.code, "[nothing_to_compact]" in again.err) == (1, True)
    assert shown.out.index("three") < shown.out.index("· Context summarised:")
    assert (facts["context"]["compactions"], facts["context"]["pinned"]) == (1, [])
    assert facts["context"]["tokens"] == receipt["tokens_after"]


async def test_a_summary_that_is_being_made_is_cancelled_in_a_chat_and_by_a_command(place: Place) -> None:
    never = msgspec.structs.replace(TALK, summary=Reply(text="Late.", delay_ms=1e9))
    async with model(place, never):
        session = await session_of(place, "one", "two")
        idle = await place.run("sessions", "compact", session, "--cancel")
        assert (idle.code, idle.out) == (0, "No summary is being made.\n")
        both = await place.run("sessions", "compact", session, "--cancel", "--instructions", "Keep it.")
        assert (both.code, "[invalid]" in both.err) == (2, True)
        async with place.terminal("chat", "--session", session) as chat:
            await chat.until("ready")
            chat.type("/compact --cancel\r")
            await chat.until("No summary is being made.")
            chat.type("/compact\r")
            await chat.until("is being summarised.")
            chat.type("/compact --cancel\r")
            await chat.until("The compaction was cancelled.")
            chat.type("/compact\r")
            await chat.until("is being summarised.", after="The compaction was cancelled.")
            done = await place.run("sessions", "compact", session, "--cancel", "--json")
            assert json.loads(done.out) == {"outcome": "cancelled"}
            await chat.until("The compaction was cancelled.", times=2)
            chat.type("/quit\r")
            assert await chat.ended() == 0


def test_a_compaction_is_one_line_and_says_what_became_of_the_older_part() -> None:
    done = CompactionEnded(
        compaction_id=ID, trigger="threshold", success=True, summary="s", tokens_before=124_000, tokens_after=9_000
    )
    assert end_line(done) == "· Context summarised: 124,000 -> 9,000 tokens."
    cut = CompactionEnded(
        compaction_id=ID,
        trigger="full",
        success=True,
        method="cut",
        tokens_before=124_000,
        tokens_after=9_000,
        error="failed",
        message="The model\x1b[2J is down.",
    )
    assert "was left out: 124,000 -> 9,000 tokens. The model" in str(end_line(cut))
    assert "\x1b" not in str(end_line(cut))
    cancelled = CompactionEnded(compaction_id=ID, trigger="manual", success=False, error="cancelled")
    assert "cancelled" in str(end_line(cancelled))
    assert end_line(CompactionEnded(compaction_id=ID, trigger="manual", success=False, error="rewound")) is None
    assert "stays as it is" in outcome_line(Compacted(compaction_id="c", outcome="failed", error="empty"))


def test_a_turn_waits_for_a_summary_only_if_its_context_is_full() -> None:
    activity = SessionActivity()
    activity.phase = Phase.BETWEEN_STEPS
    beside = CompactionStarted(compaction_id=ID, trigger="threshold", up_to=Position(9))
    waits = CompactionStarted(compaction_id=ID, trigger="full", up_to=Position(9))
    over = CompactionEnded(compaction_id=ID, trigger="full", success=True, summary="s")
    found = []
    for number, body in enumerate((beside, waits, over), 1):
        activity.take(Event(Position(number), EventId(f"e{number}"), 0, body))
        found.append((activity.compaction is not None, activity.waits_for_summary))
    assert found == [(True, False), (True, True), (False, False)]


def test_only_a_start_that_people_wait_for_is_shown() -> None:
    waits = CompactionStarted(compaction_id=ID, trigger="full", up_to=Position(9))
    assert "the turn waits" in str(start_line(waits))
    assert start_line(CompactionStarted(compaction_id=ID, trigger="threshold", up_to=Position(9))) is None
    pieces = Transcript().take(Event(Position(1), EventId("e"), 0, waits))
    assert "nearly full" in "".join(piece.text for piece in pieces)
