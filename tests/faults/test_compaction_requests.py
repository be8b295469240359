"""A compaction that a person asked for, while the processes that carry it out are killed: it is made once."""

from pathlib import Path
from typing import Final

import msgspec
import pytest

from holdfast.events.compaction import CompactionEnded, CompactionStarted, call_of
from holdfast.events.context import UserText
from holdfast.events.ids import CompactionId, Position
from holdfast.events.message import UserMessage
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.session.bounds import Bounds
from tests.faults.processes import Child, child_on
from tests.faults.test_compaction import Recorder
from tests.faults.world import bodies_of, log_of, patience, runtime_on, until

pytestmark = pytest.mark.anyio

TALK: Final = Script((Rule((Reply(text="Noted. " * 100),)),), summary=Reply(text="## Goal\nTo note things."))
NEVER: Final = msgspec.structs.replace(TALK, summary=Reply(text="Late.", delay_ms=1e9))
"""Its summaries never come."""


async def talk(child: Child) -> None:
    await child.ask("create", session="s")
    for number in range(3):
        sent = await child.ask("send", session="s", text=f"sentence {number}", message_id=f"m{number}")
        await child.ask("result", session="s", message_id=sent["message_id"])


def compactions(log: list[str]) -> list[str]:
    return [name.removeprefix("session.compaction_") for name in log if name.startswith("session.compaction_")]


async def starts(child: Child, count: int) -> None:
    """Wait until the log that the child follows has so many starts of compactions."""
    await child.hear(lambda _: child.said("event").count("session.compaction_start") >= count)


async def test_an_accepted_compaction_is_begun_by_the_next_process(database: Path) -> None:
    async with child_on(database, script=TALK) as first:
        await talk(first)
        await first.end()
    async with child_on(database, script=TALK, work=False) as waiting:
        accepted = await waiting.ask("compact", session="s", compaction_id="c", instructions="Keep the numbers.")
        assert accepted["outcome"] == "accepted"
        await waiting.kill()
    async with child_on(database, script=TALK) as next_one:
        same = {"compaction_id": "c", "instructions": "Keep the numbers."}
        compacted = await next_one.ask("compact", session="s", wait_seconds=20, **same)
        assert (compacted["outcome"], compacted["summary"]) == ("compacted", "## Goal\nTo note things.")
        assert compactions(await next_one.ask("log", session="s")) == ["start", "complete"]


async def test_a_rewind_into_the_part_that_is_being_summarised_ends_the_compaction_in_the_log(database: Path) -> None:
    async with patience(), runtime_on(database, ScriptedModel(NEVER)) as runtime:
        session = await runtime.session("s")
        for number in range(3):
            await session.run(f"sentence {number}")
        begun = await session.compact(compaction_id="c")
        assert begun.outcome in ("accepted", "compacting")
        started = await until(session, lambda body: isinstance(body, CompactionStarted))
        assert isinstance(started.body, CompactionStarted)
        await runtime.operations.rewind(session.key, Position(started.body.up_to - 1))
        receipt = await session.compact(compaction_id="c", wait_seconds=20)
        assert (receipt.outcome, receipt.error) == ("failed", "rewound")
        assert [body.error for body in await bodies_of(session, CompactionEnded)] == ["rewound"]
        assert (await session.context()).is_compacting is False


async def test_the_estimate_in_the_log_is_what_every_fold_takes_for_the_size_of_the_context(database: Path) -> None:
    async with patience(), runtime_on(database, ScriptedModel(TALK)) as runtime:
        session = await runtime.session("s")
        for number in range(3):
            await session.run(f"sentence {number}")
        compacted = await session.compact(wait_seconds=20)
        whole = await runtime.operations.whole_state(session.key)
        lean = await runtime.operations.state(session.key)
        assert 0 < compacted.tokens_after == whole.context_tokens(0) == lean.context_tokens(0)


async def test_a_summary_whose_process_is_killed_is_made_again_and_the_pin_stays(database: Path) -> None:
    async with child_on(database, script=NEVER) as first:
        await talk(first)
        await first.ask("pin", session="s", message_id="m0")
        first.begin("follow", session="s")
        assert (await first.ask("compact", session="s", compaction_id="c"))["outcome"] in ("accepted", "compacting")
        await first.hear(lambda line: line.get("event") == "session.compaction_start")
        assert (await first.ask("context", session="s"))["is_compacting"] is True
        await first.kill()
    async with child_on(database, script=TALK) as next_one:
        compacted = await next_one.ask("compact", session="s", compaction_id="c", wait_seconds=20)
        assert compacted["outcome"] == "compacted"
        assert compactions(await next_one.ask("log", session="s")) == ["start", "start", "complete"]
        context = await next_one.ask("context", session="s")
        assert (context["compactions"], context["is_compacting"], list(context["pinned"])) == (1, False, ["m0"])


async def test_each_attempt_at_a_summary_whose_process_died_is_in_the_ledger_also_the_last_one(database: Path) -> None:
    attempts = Bounds().max_compaction_attempts
    for number in range(attempts):
        async with child_on(database, script=NEVER) as dying:
            if number == 0:
                await talk(dying)
                await dying.ask("compact", session="s", compaction_id="c")
            dying.begin("follow", session="s")
            await starts(dying, number + 1)
            await dying.kill()
    async with child_on(database, script=TALK) as next_one:
        receipt = await next_one.ask("compact", session="s", compaction_id="c", wait_seconds=20)
        assert (receipt["outcome"], receipt["error"]) == ("failed", "failed")
    async with runtime_on(database, work=False) as runtime:
        key = runtime.open("s").key
        ledger = await runtime.store.ledger(key.owner, key.session)
        booked = [entry for entry in ledger if entry.message_id == call_of(CompactionId("c"))]
        assert [entry.attempt for entry in booked] == list(range(1, attempts + 1))
        assert {(entry.input_tokens, entry.cost_microdollars) for entry in booked} == {(None, None)}


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_rewind_into_what_a_summary_stands_for_gives_the_model_its_words_again(
    database: Path, restarts: bool
) -> None:
    """Two compactions stand on each other. A rewind to the middle of the first one undoes both."""
    script = msgspec.structs.replace(TALK, summary=Reply(text="In short, much was said."))
    async with patience(), runtime_on(database, ScriptedModel(script)) as runtime:
        session = await runtime.session("s")
        for number in range(6):
            await session.run(f"sentence {number}")
            if number in (3, 5):
                assert (await session.compact(wait_seconds=20)).outcome == "compacted"
        said = await bodies_of(session, UserMessage)
        second = next(event for event in await log_of(session) if event.body == said[2])
        await runtime.operations.rewind(session.key, Position(second.position - 2))
        if not restarts:
            await session.run("And now?")
    model = Recorder(script)
    async with patience(), runtime_on(database, model) as runtime:
        session = await runtime.session("s")
        await session.run("What was said?")
        (request,) = model.asked
        texts = [part.text for part in request.messages if isinstance(part, UserText)]
        asked = ["What was said?"] if restarts else ["And now?", "What was said?"]
        assert texts == ["sentence 0", "sentence 1", *asked]
