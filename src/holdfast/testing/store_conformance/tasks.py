"""What is kept of commands: their rows, the news of them, and who may change what."""

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.events.ids import Key, Owner, TaskId, ToolCallId
from holdfast.events.inbox import TaskNews
from holdfast.events.task import NoticeKind, TaskNotice, TaskStatus
from holdfast.store.clock import SystemClock
from holdfast.store.store import Committed, FenceMissed, Lease, Promotion, Rejected, Store, Unit
from holdfast.store.tasks import TaskChange, TaskEnding, TaskRow
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    OTHER,
    AgeTasks,
    OpenStore,
    create,
    info,
    keys_of,
    running,
    said,
    send,
    stop,
)

HERE = "host-here"
THERE = "host-there"
HOUR = 3600
T1, T2 = TaskId("t1"), TaskId("t2")
SOMEBODY_ELSES = Key(Owner("bob"), KEY.session)


def task(task_id: TaskId = T1, *, key: Key = KEY, host: str = HERE, started_at: int = 10, **more: Any) -> TaskRow:
    call = ToolCallId(f"call-{task_id}")
    about = {"command": "make", "description": "Build", "directory": "/w", "output_file": f"/out/{task_id}", **more}
    return TaskRow(
        key=key, task_id=task_id, tool_call_id=call, call_key=f"m:{call}", host=host, started_at=started_at, **about
    )


def ending(status: TaskStatus = "completed", exit_code: int | None = 0, *, ended_at: int = 20) -> TaskEnding:
    return TaskEnding(status=status, exit_code=exit_code, detail="why", ended_at=ended_at)


def notice(kind: NoticeKind = "completed", task_id: TaskId = T1, *, silent: bool = False) -> TaskNotice:
    return TaskNotice(task_id=task_id, kind=kind, command="make", output_tail="the end", silent=silent)


async def commit(store: Store, lease: Lease, **what: Any) -> None:
    outcome = await store.commit(Unit(key=lease.key, fence=lease.fence, **what))
    assert isinstance(outcome, Committed), outcome


async def in_front(store: Store, *tasks: TaskRow) -> Lease:
    """A session whose turn waits for these commands."""
    lease = await running(store)
    await commit(store, lease, events=(said("one"),), opens_tasks=tasks or (task(),))
    return lease


async def behind(store: Store, *tasks: TaskRow) -> Lease:
    """A session whose commands these are, in the background. Its turn has ended, and nobody holds it."""
    lease = await in_front(store, *tasks)
    changes = tuple(TaskChange(task_id=found.task_id, goes_on=True) for found in tasks or (task(),))
    await commit(store, lease, events=(said("two"),), changes_tasks=changes, status="idle")
    row = await store.row(KEY)
    assert row is not None
    assert await store.release(lease, seen_tail=row.inbox_tail, how="done")
    return lease


async def found(store: Store, task_id: TaskId = T1) -> TaskRow:
    row = await store.task(KEY, task_id)
    assert row is not None
    return row


def as_written(rows: tuple[TaskRow, ...]) -> tuple[TaskRow, ...]:
    """Without the time that passes while they are read."""
    return tuple(msgspec.structs.replace(row, host_silent_ms=0) for row in rows)


async def told(store: Store) -> list[tuple[str, str]]:
    """What waits in the session's inbox of news, in its order."""
    items = [item.item for item in await store.waiting_items(KEY)]
    return [(item.notice.task_id, item.notice.kind) for item in items if isinstance(item, TaskNews)]


async def can_be_claimed(store: Store) -> bool:
    claims = await store.claim(limit=MANY)
    for claim in claims:
        await store.release(claim.lease, seen_tail=-1, how="handed_over")
    return bool(claims)


async def write_of_tasks(store: Store, lease: Lease) -> None:
    """All that can be written of them."""
    await commit(store, lease, opens_tasks=(task(T1), task(T2)))
    changes = tuple(TaskChange(task_id=task_id, goes_on=True) for task_id in (T1, T2))
    await commit(store, lease, changes_tasks=changes)
    await store.see_host(HERE)
    await store.stall_task(await found(store), notice("stalled"))
    await store.ask_kill(KEY, T1, "person")
    await store.end_task(await found(store), ending(ended_at=1), notice(), host=HERE)
    await store.drop_old_tasks(ended_seconds=0)
    await store.drop_task(KEY, T2)


class TaskConformance:
    """What is kept of commands."""

    # Rows that units write

    async def test_the_row_of_a_command_is_in_the_unit_of_its_attempt(self, store: Store) -> None:
        await in_front(store)
        assert as_written(await store.tasks(KEY)) == (task(),)
        assert as_written((await found(store),)) == (task(),)
        assert await store.host_tasks(HERE) == (), "its turn looks after it"

    async def test_a_unit_that_is_refused_changes_no_command(self, store: Store) -> None:
        lease = await in_front(store)
        change: dict[str, Any] = {
            "opens_tasks": (task(T2),),
            "changes_tasks": (TaskChange(task_id=T1, goes_on=True),),
            "ends_commands": True,
        }
        stale = Unit(key=KEY, fence=lease.fence, events=(said("x"),), promotes=(Promotion(9, "idle"),), **change)
        assert isinstance(await store.commit(stale), Rejected)
        fence = type(lease.fence)(lease.fence + 1)
        assert isinstance(await store.commit(Unit(key=KEY, fence=fence, events=(said("x"),), **change)), FenceMissed)
        assert as_written(await store.tasks(KEY)) == (task(),)

    async def test_only_a_holder_writes_of_commands(self, store: Store) -> None:
        await in_front(store)
        changes: tuple[dict[str, Any], ...] = (
            {"opens_tasks": (task(T2),)},
            {"changes_tasks": (TaskChange(task_id=T1, goes_on=True),)},
            {"ends_commands": True},
        )
        for change in changes:
            unit = Unit(key=KEY, fence=None, events=(info("x"),), **change)
            assert isinstance(await store.commit(unit), Rejected)
        assert as_written(await store.tasks(KEY)) == (task(),)

    async def test_the_next_attempt_at_a_call_finds_the_row_of_the_first(self, store: Store) -> None:
        lease = await in_front(store)
        again = task(host=THERE, started_at=99, command="something else")
        await commit(store, lease, opens_tasks=(again,))
        assert as_written(await store.tasks(KEY)) == (task(),)

    async def test_a_command_that_goes_on_is_looked_after_on_its_machine(self, store: Store) -> None:
        lease = await in_front(store)
        await commit(store, lease, changes_tasks=(TaskChange(task_id=T1, goes_on=True),))
        row = msgspec.structs.replace(task(), foreground=False)
        assert as_written(await store.tasks(KEY)) == (row,)
        assert as_written(await store.host_tasks(HERE)) == (row,)
        assert await store.host_tasks(THERE) == ()

    async def test_a_command_that_ended_in_its_turn_is_over_and_no_news(self, store: Store) -> None:
        lease = await in_front(store)
        await commit(store, lease, changes_tasks=(TaskChange(task_id=T1, ending=ending("failed", 3)),))
        row = await found(store)
        assert (row.status, row.exit_code, row.detail, row.ended_at) == ("failed", 3, "why", 20)
        assert await told(store) == []
        assert await store.host_tasks(HERE) == ()
        assert not await store.end_task(row, ending(), notice(), host=HERE)
        assert as_written((await found(store),)) == as_written((row,))

    async def test_a_command_of_which_its_result_knows_nothing_is_to_be_killed(self, store: Store) -> None:
        lease = await in_front(store, task(), task(T2))
        await commit(store, lease, changes_tasks=(TaskChange(task_id=T2),))
        assert [(row.task_id, row.kill_asked) for row in await store.host_tasks(HERE)] == [(T2, "stop")]
        assert (await found(store)).kill_asked is None

    async def test_the_end_of_a_turn_has_all_killed_that_it_waited_for_and_nothing_else(self, store: Store) -> None:
        others = (task(T2), task(TaskId("t3")), task(TaskId("t4")))
        lease = await in_front(store, task(), *others)
        changes = (TaskChange(task_id=T2, goes_on=True), TaskChange(task_id=TaskId("t3"), ending=ending()))
        await commit(store, lease, changes_tasks=changes)
        await commit(store, lease, events=(said("x"),), ends_commands=True)
        wishes = {row.task_id: row.kill_asked for row in await store.tasks(KEY)}
        assert wishes == {"t1": "stop", "t2": None, "t3": None, "t4": "stop"}
        assert sorted(row.task_id for row in await store.host_tasks(HERE)) == ["t1", "t2", "t4"]

    # How they end

    async def test_an_end_and_the_news_of_it_are_there_together_and_wake_the_session(self, store: Store) -> None:
        await behind(store)
        assert not await can_be_claimed(store)
        row = await found(store)
        assert await store.end_task(row, ending("failed", 2), notice("failed"), host=HERE)
        ended = await found(store)
        assert (ended.status, ended.exit_code, ended.detail, ended.ended_at) == ("failed", 2, "why", 20)
        assert await told(store) == [(T1, "failed")]
        (item,) = await store.waiting_items(KEY)
        assert item.item == TaskNews(notice=notice("failed"))
        assert await can_be_claimed(store)
        assert await store.host_tasks(HERE) == ()

    async def test_an_end_is_told_once_whoever_tells_it_and_however_often(
        self, store: Store, open_store: OpenStore
    ) -> None:
        await behind(store)
        row = await found(store)
        other = await open_store()
        tries = [each.end_task(row, ending(), notice(), host=HERE) for each in (store, other) for _ in range(8)]
        assert sum(await asyncio.gather(*tries)) == 1
        assert await told(store) == [(T1, "completed")]
        assert not await store.end_task(row, ending("failed", 1), notice("failed"), host=HERE)
        assert (await found(store)).status == "completed"
        assert await told(store) == [(T1, "completed")]

    async def test_news_that_was_taken_in_is_not_told_again(self, store: Store) -> None:
        await behind(store)
        row = await found(store)
        await store.end_task(row, ending("lost", None), notice("lost"), host=THERE)
        (claim,) = await store.claim(limit=MANY)
        (item,) = await store.waiting_items(KEY)
        await commit(store, claim.lease, events=(said("x"),), promotes=(Promotion(item.sequence, "told"),))
        assert await store.end_task(row, ending("lost", None), notice("lost"), host=HERE), "its own machine settles it"
        assert await told(store) == []

    async def test_silent_news_waits_and_wakes_nobody_but_a_holder_hears_of_it(self, store: Store) -> None:
        await behind(store)
        before = (await store.tails([KEY]))[KEY][1]
        assert await store.end_task(await found(store), ending("killed"), notice("killed", silent=True), host=HERE)
        assert await told(store) == [(T1, "killed")]
        assert (await store.tails([KEY]))[KEY][1] == before + 1
        assert not await can_be_claimed(store)
        row = await store.row(KEY)
        assert row is not None
        assert row.status == "idle"

    async def test_an_end_that_nobody_is_to_be_told_of_changes_the_row_alone(self, store: Store) -> None:
        await behind(store)
        assert await store.end_task(await found(store), ending("killed"), None, host=HERE)
        assert (await found(store)).status == "killed"
        assert await told(store) == []

    async def test_a_holder_learns_of_news_with_its_next_write(self, store: Store) -> None:
        lease = await in_front(store)
        await commit(store, lease, changes_tasks=(TaskChange(task_id=T1, goes_on=True),))
        before = await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("x"),)))
        await store.end_task(await found(store), ending(), notice(), host=HERE)
        after = await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("y"),)))
        assert isinstance(before, Committed)
        assert isinstance(after, Committed)
        assert after.inbox_tail == before.inbox_tail + 1

    async def test_news_does_not_let_a_session_go_that_has_not_seen_it(self, store: Store) -> None:
        lease = await in_front(store)
        await commit(store, lease, changes_tasks=(TaskChange(task_id=T1, goes_on=True),), status="idle")
        row = await store.row(KEY)
        assert row is not None
        await store.end_task(await found(store), ending(), notice(), host=HERE)
        assert not await store.release(lease, seen_tail=row.inbox_tail, how="done")

    async def test_news_is_no_message(self, store: Store) -> None:
        await behind(store)
        await store.end_task(await found(store), ending(), notice(), host=HERE)
        row = await store.row(KEY)
        assert row is not None
        assert row.waiting_messages == 0
        assert not await store.remove_item(KEY, f"task:{T1}:completed")
        await send(store, "m", only_if_idle=True)
        stopped = await stop(store)
        assert [item.key for item in getattr(stopped, "removed", ())] == ["m"]
        assert keys_of(await store.waiting_items(KEY)) == [f"task:{T1}:completed"]

    # Machines

    async def test_one_that_others_gave_up_is_corrected_by_its_own_machine_and_by_no_other(self, store: Store) -> None:
        await behind(store)
        row = await found(store)
        assert await store.end_task(row, ending("lost", None), notice("lost"), host=THERE)
        assert (await found(store)).status == "lost"
        assert [found.task_id for found in await store.host_tasks(HERE)] == [T1], "its machine still has to say"
        assert not await store.end_task(row, ending(), notice(), host=THERE)
        assert not await store.end_task(row, ending(), notice(), host="a third one")
        assert (await found(store)).status == "lost"
        assert await store.end_task(row, ending(), notice(), host=HERE)
        assert (await found(store)).status == "completed"
        assert await told(store) == [(T1, "lost"), (T1, "completed")]
        assert not await store.end_task(row, ending("lost", None), notice("lost"), host=THERE)
        assert await store.host_tasks(HERE) == ()

    async def test_the_tasks_of_a_machine_that_is_not_heard_of_are_strays(
        self, store: Store, age_tasks: AgeTasks
    ) -> None:
        await behind(store, task())
        await store.see_host(HERE)
        assert await store.stray_tasks(THERE, silent_seconds=HOUR) == ()
        await age_tasks(HOUR)
        assert (await found(store)).host_silent_ms >= HOUR * 1000
        assert [row.task_id for row in await store.stray_tasks(THERE, silent_seconds=HOUR)] == [T1]
        assert await store.stray_tasks(HERE, silent_seconds=HOUR) == (), "its own are none"
        await store.see_host(HERE)
        assert (await found(store)).host_silent_ms < HOUR * 1000
        assert await store.stray_tasks(THERE, silent_seconds=HOUR) == ()
        await store.end_task(await found(store), ending(), notice(), host=HERE)
        await age_tasks(HOUR)
        assert await store.stray_tasks(THERE, silent_seconds=HOUR) == ()

    async def test_a_task_is_no_stray_before_its_machine_could_have_been_heard_of(
        self, store: Store, age_tasks: AgeTasks
    ) -> None:
        await behind(store, task(started_at=1000))
        assert await store.stray_tasks(THERE, silent_seconds=HOUR) == ()
        await age_tasks(HOUR)
        assert [row.task_id for row in await store.stray_tasks(THERE, silent_seconds=HOUR)] == [T1]

    @pytest.mark.parametrize("minutes_off", [-61, 61])
    async def test_a_process_whose_clock_is_wrong_makes_no_task_a_stray(
        self, open_store: OpenStore, age_tasks: AgeTasks, minutes_off: int
    ) -> None:
        """Neither what it notes of its own machine nor how it judges the others follows its clock."""
        now = SystemClock().now_ms()
        exact = await open_store(node="exact")
        wrong = await open_store(node="wrong", clock=ManualClock(start_ms=now + minutes_off * 60_000))
        await behind(exact, task(started_at=now))
        await exact.see_host(HERE)
        assert await wrong.stray_tasks(THERE, silent_seconds=HOUR) == ()
        await age_tasks(HOUR)
        await wrong.see_host(HERE)
        assert await exact.stray_tasks(THERE, silent_seconds=HOUR) == ()
        assert await wrong.stray_tasks(THERE, silent_seconds=HOUR) == ()
        await age_tasks(HOUR)
        assert len(await exact.stray_tasks(THERE, silent_seconds=HOUR)) == 1
        assert len(await wrong.stray_tasks(THERE, silent_seconds=HOUR)) == 1

    async def test_what_a_turn_waits_for_is_no_stray(self, store: Store) -> None:
        """Its holder says nothing of its machine, and knows what became of it."""
        lease = await in_front(store)
        assert await store.stray_tasks(THERE, silent_seconds=0) == ()
        await commit(store, lease, ends_commands=True)
        assert [row.task_id for row in await store.stray_tasks(THERE, silent_seconds=0)] == [T1]

    # Stuck

    async def test_a_task_seems_stuck_once_and_its_end_is_told_all_the_same(
        self, store: Store, open_store: OpenStore
    ) -> None:
        await behind(store)
        row = await found(store)
        other = await open_store()
        tries = [each.stall_task(row, notice("stalled")) for each in (store, other) for _ in range(4)]
        assert sum(await asyncio.gather(*tries)) == 1
        stalled = await found(store)
        assert (stalled.stalled, stalled.status) == (True, "running")
        assert await can_be_claimed(store)
        assert await store.end_task(row, ending(), notice(), host=HERE)
        assert not (await found(store)).stalled
        assert not await store.stall_task(row, notice("stalled")), "it has ended"
        assert await told(store) == [(T1, "stalled"), (T1, "completed")]

    async def test_a_stuck_task_that_goes_on_may_seem_stuck_again_and_is_told_of_once(self, store: Store) -> None:
        await behind(store)
        row = await found(store)
        assert not await store.stall_task(row, None), "it goes on anyway"
        assert await store.stall_task(row, notice("stalled"))
        assert await store.stall_task(row, None)
        assert not (await found(store)).stalled
        assert await store.stall_task(row, notice("stalled"))
        assert (await found(store)).stalled
        assert await told(store) == [(T1, "stalled")]

    async def test_what_a_turn_waits_for_does_not_seem_stuck(self, store: Store) -> None:
        await in_front(store)
        assert not await store.stall_task(await found(store), notice("stalled"))
        assert await told(store) == []

    # Kills

    async def test_a_wish_to_kill_is_kept_until_the_task_has_ended(self, store: Store) -> None:
        await behind(store)
        assert await store.ask_kill(KEY, T1, "person")
        assert not await store.ask_kill(KEY, T1, "model"), "somebody asked before"
        assert [(row.task_id, row.kill_asked) for row in await store.host_tasks(HERE)] == [(T1, "person")]
        assert await store.end_task(await found(store), ending("killed"), notice("killed"), host=HERE)
        assert (await found(store)).kill_asked is None
        assert not await store.ask_kill(KEY, T1, "person"), "it does not run"

    async def test_nobody_kills_what_is_not_there_or_not_theirs(self, store: Store) -> None:
        await behind(store)
        assert not await store.ask_kill(KEY, T2, "person")
        assert not await store.ask_kill(OTHER, T1, "person")
        assert not await store.ask_kill(SOMEBODY_ELSES, T1, "person")
        assert (await found(store)).kill_asked is None

    async def test_a_stop_outdoes_other_wishes(self, store: Store) -> None:
        """Nobody reads the result of a call whose turn is over."""
        lease = await in_front(store)
        assert await store.ask_kill(KEY, T1, "person")
        await commit(store, lease, ends_commands=True)
        assert (await found(store)).kill_asked == "stop"

    # Who sees them

    async def test_commands_are_listed_in_the_order_of_their_start_and_only_to_their_owner(self, store: Store) -> None:
        await behind(store, task(T2, started_at=5), task(T1, started_at=9))
        assert [row.task_id for row in await store.tasks(KEY)] == [T2, T1]
        assert [row.task_id for row in await store.owner_tasks(KEY.owner)] == [T2, T1]
        assert await store.tasks(SOMEBODY_ELSES) == ()
        assert await store.task(SOMEBODY_ELSES, T1) is None
        assert await store.owner_tasks(SOMEBODY_ELSES.owner) == ()
        assert await store.tasks(OTHER) == ()
        assert await store.task(OTHER, T1) is None

    async def test_those_that_run_are_found_whether_a_turn_waits_for_them_or_not(self, store: Store) -> None:
        rows = (task(T1, started_at=9), task(T2, started_at=5), task(TaskId("t3")), task(TaskId("t4")))
        lease = await in_front(store, *rows)
        changes = (TaskChange(task_id=T1, goes_on=True), TaskChange(task_id=TaskId("t3"), ending=ending()))
        await commit(store, lease, changes_tasks=changes)
        await store.end_task(await found(store, TaskId("t4")), ending("lost", None), None, host=THERE)
        assert [row.task_id for row in await store.running_tasks(KEY)] == [T2, T1]
        assert await store.running_tasks(OTHER) == ()
        assert await store.running_tasks(SOMEBODY_ELSES) == ()
        await store.delete(KEY)
        assert await store.running_tasks(KEY) == ()

    async def test_the_same_id_in_another_session_is_another_task(self, store: Store) -> None:
        await behind(store)
        await create(store, OTHER)
        await send(store, "m", key=OTHER)
        lease = next(claim.lease for claim in await store.claim(limit=MANY) if claim.lease.key == OTHER)
        await commit(store, lease, opens_tasks=(task(key=OTHER),))
        assert await store.end_task(await found(store), ending(), notice(), host=HERE)
        assert [row.status for row in await store.tasks(OTHER)] == ["running"]
        assert not [item for item in await store.waiting_items(OTHER) if isinstance(item.item, TaskNews)]

    async def test_any_text_can_be_kept(self, store: Store) -> None:
        odd = "\0\u2028é𝄞\ud800"
        await in_front(store, task(command=odd, description=odd, alias=odd))
        row = await found(store)
        assert row.command == row.description == row.alias == "\0\u2028é𝄞�"

    # The session is deleted

    async def test_the_commands_of_a_deleted_session_are_hidden_and_kept_for_whoever_kills_them(
        self, store: Store
    ) -> None:
        lease = await in_front(store, task(), task(T2), task(TaskId("t3")))
        changes = (TaskChange(task_id=T2, goes_on=True), TaskChange(task_id=TaskId("t3"), ending=ending()))
        await commit(store, lease, changes_tasks=changes)
        row = await found(store)
        assert await store.delete(KEY)
        assert await store.tasks(KEY) == ()
        assert await store.task(KEY, T1) is None
        assert await store.owner_tasks(KEY.owner) == ()
        left = await store.host_tasks(HERE)
        assert sorted((found.task_id, found.kill_asked) for found in left) == [
            ("t1", "deletion"),
            ("t2", "deletion"),
            ("t3", "deletion"),
        ]
        assert {(found.command, found.description) for found in left} == {("", "")}, "what it said is gone"
        assert {found.call_key for found in left} == {row.call_key, "m:call-t2", "m:call-t3"}
        late = Unit(key=KEY, fence=lease.fence, opens_tasks=(task(TaskId("t4")),))
        assert isinstance(await store.commit(late), FenceMissed)

    async def test_the_end_of_a_command_of_a_deleted_session_is_told_to_nobody(self, store: Store) -> None:
        await behind(store)
        row = await found(store)
        await store.delete(KEY)
        await store.end_task(row, ending(), notice(), host=HERE)
        assert await store.waiting_items(KEY) == ()
        assert [(left.task_id, left.kill_asked) for left in await store.host_tasks(HERE)] == [(T1, "deletion")]
        assert not await store.ask_kill(KEY, T1, "person")
        assert await store.drop_task(KEY, T1)
        assert not await store.drop_task(KEY, T1)
        assert await store.host_tasks(HERE) == ()

    async def test_commands_of_a_deleted_session_on_a_machine_that_is_gone_are_strays(self, store: Store) -> None:
        await behind(store)
        await store.end_task(await found(store), ending(), notice(), host=HERE)
        await store.delete(KEY)
        assert [row.kill_asked for row in await store.stray_tasks(THERE, silent_seconds=0)] == ["deletion"]

    # Time passes

    async def test_what_ended_long_ago_is_dropped_and_what_runs_or_is_to_be_killed_stays(
        self, store: Store, age_tasks: AgeTasks
    ) -> None:
        rows = (task(), task(T2), task(TaskId("t3")), task(TaskId("t4")), task(TaskId("t5")))
        lease = await in_front(store, *rows)
        changes = [TaskChange(task_id=row.task_id, goes_on=True) for row in rows[:4]]
        in_turn = TaskChange(task_id=TaskId("t5"), ending=ending())
        await commit(store, lease, changes_tasks=(*changes, in_turn))
        await store.end_task(await found(store), ending(), notice(), host=HERE)
        await store.end_task(await found(store, TaskId("t4")), ending("lost"), None, host=THERE)
        assert await store.drop_old_tasks(ended_seconds=HOUR) == 0
        await age_tasks(HOUR)
        await store.end_task(await found(store, T2), ending(), notice(task_id=T2), host=HERE)
        assert await store.drop_old_tasks(ended_seconds=HOUR) == 3
        assert [row.task_id for row in await store.tasks(KEY)] == ["t2", "t3"]
        assert await told(store) == [(T1, "completed"), (T2, "completed")], "the news of it is not lost"
        await store.delete(KEY)
        await age_tasks(HOUR)
        assert await store.drop_old_tasks(ended_seconds=HOUR) == 0

    @pytest.mark.parametrize("minutes_off", [-61, 61])
    async def test_a_process_whose_clock_is_wrong_drops_no_task_early_and_none_late(
        self, open_store: OpenStore, age_tasks: AgeTasks, minutes_off: int
    ) -> None:
        """Neither the time that it gives for an end nor how it judges the ends of others follows its clock."""
        now = SystemClock().now_ms()
        exact = await open_store(node="exact")
        wrong_now = now + minutes_off * 60_000
        wrong = await open_store(node="wrong", clock=ManualClock(start_ms=wrong_now))
        await behind(exact, task(), task(T2))
        await exact.end_task(await found(exact), ending(ended_at=now), None, host=HERE)
        await wrong.end_task(await found(wrong, T2), ending(ended_at=wrong_now), None, host=HERE)
        for store in (exact, wrong):
            assert await store.drop_old_tasks(ended_seconds=HOUR) == 0
        await age_tasks(HOUR)
        assert await wrong.drop_old_tasks(ended_seconds=HOUR) == 2
