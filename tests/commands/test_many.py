"""Many commands and many who wait: nobody is kept from anything by another, and waiting costs nothing."""

import asyncio
import os
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from holdfast.commands.command import CommandKey, Limits
from holdfast.commands.commands import Commands
from tests.commands.world import (
    PATIENCE_SECONDS,
    REPOSITORY,
    SETTINGS,
    everything,
    new_key,
    outcome,
    ran,
    spec,
    started,
    until,
)

CEILING = 100_000


@pytest.fixture
async def trace(root: Path) -> Path:
    """The trace of a supervisor that notes its work; it serves the commands of the test."""
    launched = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.commands.noting", str(root), msgspec.json.encode(SETTINGS).decode()),
        cwd=REPOSITORY,
    )
    assert await launched.wait() == 0
    return root / "trace"


def noted(trace: Path, *words: str) -> list[list[str]]:
    lines = [line.split() for line in trace.read_text().splitlines()]
    return [line for line in lines if line[0] in words]


def of(key: CommandKey, lines: list[list[str]]) -> list[list[str]]:
    return [line for line in lines if line[1] == key.tool_call]


async def test_output_over_the_ceiling_is_read_in_pieces_with_pauses_and_output_below_it_without(
    trace: Path, commands: Commands
) -> None:
    """In one pipe, so that the order of what is noted is that of its pieces."""
    script = "head -c 4000000 /dev/zero"
    flood, _ = await ran(commands, spec(script, merged=True, limits=Limits(output_bytes=CEILING)))
    ample, _ = await ran(commands, spec(script, merged=True))
    reading = noted(trace, "piece", "rested")
    assert "rested" not in {line[0] for line in of(ample, reading)}
    over = [line for line in of(flood, reading) if line[0] == "rested" or int(line[2]) > CEILING]
    assert len(over) > 10
    assert all({one[0], following[0]} == {"piece", "rested"} for one, following in pairwise(over))


async def test_a_command_with_endless_output_does_not_delay_others(commands: Commands) -> None:
    flood = new_key()
    await started(commands, flood, spec("yes", limits=Limits(output_bytes=CEILING)))
    assert (await commands.wait_for_output(flood, 10 * CEILING, PATIENCE_SECONDS)).output_bytes > 10 * CEILING
    waited_for = new_key()
    await started(commands, waited_for, spec("sleep 100"))
    waiting = [asyncio.create_task(commands.wait(waited_for)) for _ in range(200)]
    for number in range(20):
        key, end = await ran(commands, spec(f"echo {number}; exit {number}"))
        assert (end.exit_code, await everything(commands, key)) == (number, b"%d\n" % number)
        assert {status.key for status in await commands.listed()} == {flood, waited_for}
    assert not any(one.done() for one in waiting)
    report = await commands.kill(waited_for, 0)
    assert {status.outcome for status in await asyncio.gather(*waiting)} == {report.status.outcome}
    assert (await commands.kill(flood, 0)).escaped == ()


async def test_a_waiter_for_more_output_hears_of_it_while_another_command_floods(
    commands: Commands, tmp_path: Path
) -> None:
    flood, quiet = new_key(), new_key()
    await started(commands, flood, spec("yes", limits=Limits(output_bytes=CEILING)))
    await commands.wait_for_output(flood, 10 * CEILING, PATIENCE_SECONDS)
    await started(commands, quiet, spec("until [ -e go ]; do sleep 0.01; done; echo gone; sleep 100", tmp_path))
    waiting = asyncio.create_task(commands.wait_for_output(quiet, 0, PATIENCE_SECONDS))
    assert (await commands.wait(quiet, 0.01)).output_bytes == 0
    (tmp_path / "go").touch()
    assert (await waiting).output_bytes == 5


async def test_two_hundred_who_wait_make_the_supervisor_do_nothing(trace: Path, commands: Commands) -> None:
    keys = [new_key() for _ in range(20)]
    for key in keys:
        await started(commands, key, spec("exec sleep 100"))
    waiting = [asyncio.create_task(commands.wait(key, 1000)) for key in keys for _ in range(10)]
    await until(lambda: noted(trace, "asked").count(["asked", "WatchRequest"]) == 200)
    await commands.listed()
    before = noted(trace, "turn", "asked")
    # Some time goes by, however much: one who waits is not answered, says so, and asks.
    assert (await commands.wait(keys[0], 0.5)).state == "running"
    since = noted(trace, "turn", "asked")[len(before) :]
    assert [line[1] for line in since if line[0] == "asked"] == ["WatchRequest", "CancelRequest", "StatusRequest"]
    assert since.count(["turn"]) <= 4
    await asyncio.gather(*(commands.kill(key, 0) for key in keys))
    ends = [status.outcome for status in await asyncio.gather(*waiting)]
    assert {end.reason for end in ends if end is not None} == {"killed"}


async def test_a_status_says_how_much_was_written_and_when_last(commands: Commands, tmp_path: Path) -> None:
    key = new_key()
    script = "until [ -e go ]; do sleep 0.01; done; echo gone; until [ -e on ]; do sleep 0.01; done"
    silent = await started(commands, key, spec(script, tmp_path))
    assert (silent.output_bytes, silent.last_output_at) == (0, silent.record.at)
    (tmp_path / "go").touch()
    spoke = await commands.wait_for_output(key, 0, PATIENCE_SECONDS)
    assert spoke.output_bytes == 5
    assert spoke.last_output_at > silent.last_output_at
    assert (await commands.wait(key, 0.05)).last_output_at == spoke.last_output_at
    (tmp_path / "on").touch()
    end = await outcome(commands, key)
    ended = await commands.status(key)
    assert ended is not None
    assert end.at > ended.last_output_at >= silent.record.at


@pytest.mark.slow
async def test_of_two_hundred_megabytes_the_ends_are_kept_while_the_supervisor_answers_others(
    commands: Commands, root: Path
) -> None:
    """Another client asks without a pause. Every byte is counted, and the disk holds no more than the ceiling."""
    size, ceiling, line = 200 * 1024 * 1024, 16 * 1024 * 1024, b"0123456789abcde\n"
    key = new_key()
    flood = spec(f"yes 0123456789abcde | head -c {size}; exit 9", limits=Limits(output_bytes=ceiling))
    folder = Path((await started(commands, key, flood)).folder)
    seen: list[int] = []
    async with Commands(root, settings=SETTINGS) as another, asyncio.timeout(10 * PATIENCE_SECONDS):
        while (status := await another.status(key)) is not None and status.outcome is None:
            seen.append(status.output_bytes)
    assert status is not None
    assert status.outcome is not None
    assert (status.outcome.exit_code, status.outcome.output_bytes) == (9, size)
    assert len(set(seen)) > 2
    assert seen == sorted(seen)
    head, tail = await commands.read(key, 0, size), await commands.read(key, ceiling, size)
    assert (head.offset, head.data) == (0, line * (ceiling // 2 // 16))
    assert (tail.end, tail.data) == (size, line * (len(tail.data) // 16))
    assert len(tail.data) >= ceiling * 3 // 8
    assert sum(os.stat(folder / name).st_size for name in os.listdir(folder)) < ceiling + 4096
    assert (folder / "output").read_bytes()[ceiling // 2 :].startswith(b"\n[holdfast: more than")
