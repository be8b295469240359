"""A compaction that a person asked for, while the processes that carry it out are killed: it is made once."""

from pathlib import Path
from typing import Final

import msgspec
import pytest

from holdfast.models.scripted import Reply, Rule, Script
from tests.faults.processes import Child, child_on

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
