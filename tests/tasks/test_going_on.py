"""The current state of a task after a stall, under a name that was used again, and in an unusual folder."""

import os
from pathlib import Path

import msgspec
import pytest

from holdfast.testing.store_conformance.tasks import in_front
from holdfast.testing.store_conformance.words import KEY
from tests.tasks.world import QUICK, Machine, let_go, pipe, until

pytestmark = pytest.mark.anyio


async def test_a_stuck_task_that_goes_on_is_running_again_and_is_not_told_of_twice(
    machine: Machine, work: Path
) -> None:
    pipe(work, "first")
    pipe(work, "second")
    asks = "printf 'Proceed? [y/n] '; cat first; printf 'Sure? [y/n] '; cat second"
    (row,) = await machine.begin(asks, directory=work)

    async def is_stalled() -> bool:
        return (await machine.now(row)).stalled

    async def has_written() -> bool:
        return await machine.desk.size(row) > len("Proceed? [y/n] ")

    async with machine.keeper(msgspec.structs.replace(QUICK, stall_after_seconds=0.05)):
        await machine.is_told(1)
        await until(is_stalled)
    await let_go(work / "first")
    await until(has_written)
    patient = msgspec.structs.replace(QUICK, stall_after_seconds=3600.0)
    async with machine.keeper(patient):

        async def is_running() -> bool:
            return machine.desk.shown_status(await machine.now(row)) == "running"

        await until(is_running)
    async with machine.keeper(msgspec.structs.replace(QUICK, stall_after_seconds=0.05)):
        await until(is_stalled)
        await let_go(work / "second")
        told = await machine.is_told(2)
    assert [notice.kind for notice in told] == ["stalled", "completed"]


async def test_a_name_that_was_used_again_means_what_still_runs(machine: Machine, work: Path) -> None:
    pipe(work)
    running, over = await machine.begin("cat go", "exit 0", directory=work, alias="main")
    async with machine.keeper():
        await machine.has_ended(over)
        assert (await machine.desk.find(KEY, "main")).task_id == running.task_id
        await let_go(work / "go")
        await machine.has_ended(running)


async def test_a_folder_whose_name_is_no_text_does_not_spoil_the_row(machine: Machine, work: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(work) + b"/odd\xff"))
    row = machine.row("true", odd)
    await in_front(machine.store, row)
    assert (await machine.now(row)).directory.endswith("odd\ufffd")
