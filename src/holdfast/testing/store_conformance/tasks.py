"""Commands and tasks: their rows, the news of their ends, kills, and which process may change what."""

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.events import codec
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
    """Create and claim a session whose turn waits for these commands."""
    lease = await running(store)
    await commit(store, lease, events=(said("one"),), opens_tasks=tasks or (task(),))
    return lease


async def in_background(store: Store, *tasks: TaskRow) -> Lease:
    """Create a session with these commands in the background. Its turn has ended, and the session is released."""
    lease = await in_front(store, *tasks)
    changes = tuple(TaskChange(task_id=row.task_id, goes_on=True) for row in tasks or (task(),))
    await commit(store, lease, events=(said("two"),), changes_tasks=changes, status="idle")
    row = await store.row(KEY)
    assert row is not None
    assert await store.release(lease, seen_tail=row.inbox_tail, how="done")
    return lease


async def task_row(store: Store, task_id: TaskId = T1) -> TaskRow:
    row = await store.task(KEY, task_id)
    assert row is not None
    return row


def as_written(rows: tuple[TaskRow, ...]) -> tuple[TaskRow, ...]:
    """The rows without `host_silent_ms`, which grows while they are read."""
    return tuple(msgspec.structs.replace(row, host_silent_ms=0) for row in rows)


async def pending_news(store: Store) -> list[tuple[str, str]]:
    """The news of tasks that waits in the session's inbox, in order."""
    items = [item.item for item in await store.waiting_items(KEY)]
    return [(item.notice.task_id, item.notice.kind) for item in items if isinstance(item, TaskNews)]


async def can_be_claimed(store: Store) -> bool:
    claims = await store.claim(limit=MANY)
    for claim in claims:
        await store.release(claim.lease, seen_tail=-1, how="handed_over")
    return bool(claims)


async def write_of_tasks(store: Store, lease: Lease) -> None:
    """Every write that concerns tasks."""
    await commit(store, lease, opens_tasks=(task(T1), task(T2)))
    changes = tuple(TaskChange(task_id=task_id, goes_on=True) for task_id in (T1, T2))
    await commit(store, lease, changes_tasks=changes)
    await store.see_host(HERE)
    await store.stall_task(await task_row(store), notice("stalled"))
    await store.ask_kill(KEY, T1, "person")
    await store.end_task(await task_row(store), ending(ended_at=1), notice(), host=HERE)
    await store.drop_old_tasks(ended_seconds=0)
    await store.drop_task(KEY, T2)


class TaskConformance:
    """Rows of commands, their ends and the news of them, hosts, stalls, kills, visibility and expiry."""

    # Rows that units write

    async def test_command_row_is_written_in_the_unit_of_its_attempt(self, store: Store) -> None:
        await in_front(store)
        assert as_written(await store.tasks(KEY)) == (task(),)
        assert as_written((await task_row(store),)) == (task(),)
        assert await store.host_tasks(HERE) == (), "the turn watches a foreground command"

    async def test_refused_unit_changes_no_command(self, store: Store) -> None:
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

    async def test_only_the_holder_writes_command_rows(self, store: Store) -> None:
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

    async def test_next_attempt_at_a_call_keeps_the_first_row(self, store: Store) -> None:
        lease = await in_front(store)
        again = task(host=THERE, started_at=99, command="something else")
        await commit(store, lease, opens_tasks=(again,))
        assert as_written(await store.tasks(KEY)) == (task(),)

    async def test_background_command_is_listed_for_its_host(self, store: Store) -> None:
        lease = await in_front(store)
        await commit(store, lease, changes_tasks=(TaskChange(task_id=T1, goes_on=True),))
        row = msgspec.structs.replace(task(), foreground=False)
        assert as_written(await store.tasks(KEY)) == (row,)
        assert as_written(await store.host_tasks(HERE)) == (row,)
        assert await store.host_tasks(THERE) == ()

    async def test_command_that_ended_in_its_turn_gives_no_news(self, store: Store) -> None:
        lease = await in_front(store)
        await commit(store, lease, changes_tasks=(TaskChange(task_id=T1, ending=ending("failed", 3)),))
        row = await task_row(store)
        assert (row.status, row.exit_code, row.detail, row.ended_at) == ("failed", 3, "why", 20)
        assert await pending_news(store) == []
        assert await store.host_tasks(HERE) == ()
        assert not await store.end_task(row, ending(), notice(), host=HERE)
        assert as_written((await task_row(store),)) == as_written((row,))

    async def test_command_without_an_outcome_in_its_result_is_marked_for_kill(self, store: Store) -> None:
        lease = await in_front(store, task(), task(T2))
        await commit(store, lease, changes_tasks=(TaskChange(task_id=T2),))
        assert [(row.task_id, row.kill_asked) for row in await store.host_tasks(HERE)] == [(T2, "stop")]
        assert (await task_row(store)).kill_asked is None

    async def test_end_of_a_turn_marks_only_its_foreground_commands_for_kill(self, store: Store) -> None:
        others = (task(T2), task(TaskId("t3")), task(TaskId("t4")))
        lease = await in_front(store, task(), *others)
        changes = (TaskChange(task_id=T2, goes_on=True), TaskChange(task_id=TaskId("t3"), ending=ending()))
        await commit(store, lease, changes_tasks=changes)
        await commit(store, lease, events=(said("x"),), ends_commands=True)
        wishes = {row.task_id: row.kill_asked for row in await store.tasks(KEY)}
        assert wishes == {"t1": "stop", "t2": None, "t3": None, "t4": "stop"}
        assert sorted(row.task_id for row in await store.host_tasks(HERE)) == ["t1", "t2", "t4"]

    # Ends

    async def test_end_of_a_task_and_its_news_are_atomic_and_wake_the_session(self, store: Store) -> None:
        await in_background(store)
        assert not await can_be_claimed(store)
        row = await task_row(store)
        assert await store.end_task(row, ending("failed", 2), notice("failed"), host=HERE)
        ended = await task_row(store)
        assert (ended.status, ended.exit_code, ended.detail, ended.ended_at) == ("failed", 2, "why", 20)
        assert await pending_news(store) == [(T1, "failed")]
        (item,) = await store.waiting_items(KEY)
        assert item.item == TaskNews(notice=notice("failed"))
        assert await can_be_claimed(store)
        assert await store.host_tasks(HERE) == ()

    async def test_end_of_a_task_is_put_once_however_often_it_is_reported(
        self, store: Store, open_store: OpenStore
    ) -> None:
        await in_background(store)
        row = await task_row(store)
        other = await open_store()
        tries = [each.end_task(row, ending(), notice(), host=HERE) for each in (store, other) for _ in range(8)]
        assert sum(await asyncio.gather(*tries)) == 1
        assert await pending_news(store) == [(T1, "completed")]
        assert not await store.end_task(row, ending("failed", 1), notice("failed"), host=HERE)
        assert (await task_row(store)).status == "completed"
        assert await pending_news(store) == [(T1, "completed")]

    async def test_promoted_news_is_not_put_again(self, store: Store) -> None:
        await in_background(store)
        row = await task_row(store)
        await store.end_task(row, ending("lost", None), notice("lost"), host=THERE)
        (claim,) = await store.claim(limit=MANY)
        (item,) = await store.waiting_items(KEY)
        await commit(store, claim.lease, events=(said("x"),), promotes=(Promotion(item.sequence, "told"),))
        assert await store.end_task(row, ending("lost", None), notice("lost"), host=HERE), (
            "its own host reports the final outcome"
        )
        assert await pending_news(store) == []

    async def test_silent_news_raises_the_tail_but_wakes_no_worker(self, store: Store) -> None:
        await in_background(store)
        before = (await store.tails([KEY]))[KEY][1]
        stored = (await store.stored(KEY.owner)).stored_bytes
        silent = notice("killed", silent=True)
        assert await store.end_task(await task_row(store), ending("killed"), silent, host=HERE)
        assert await pending_news(store) == [(T1, "killed")]
        added = (await store.stored(KEY.owner)).stored_bytes - stored
        assert added == len(codec.encode_item(TaskNews(notice=silent)))
        assert (await store.tails([KEY]))[KEY][1] == before + 1
        assert not await can_be_claimed(store)
        row = await store.row(KEY)
        assert row is not None
        assert row.status == "idle"

    async def test_end_without_a_notice_changes_only_the_row(self, store: Store) -> None:
        await in_background(store)
        assert await store.end_task(await task_row(store), ending("killed"), None, host=HERE)
        assert (await task_row(store)).status == "killed"
        assert await pending_news(store) == []

    async def test_commit_returns_the_tail_raised_by_news(self, store: Store) -> None:
        lease = await in_front(store)
        await commit(store, lease, changes_tasks=(TaskChange(task_id=T1, goes_on=True),))
        before = await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("x"),)))
        await store.end_task(await task_row(store), ending(), notice(), host=HERE)
        after = await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("y"),)))
        assert isinstance(before, Committed)
        assert isinstance(after, Committed)
        assert after.inbox_tail == before.inbox_tail + 1

    async def test_release_fails_if_news_was_missed(self, store: Store) -> None:
        lease = await in_front(store)
        await commit(store, lease, changes_tasks=(TaskChange(task_id=T1, goes_on=True),), status="idle")
        row = await store.row(KEY)
        assert row is not None
        await store.end_task(await task_row(store), ending(), notice(), host=HERE)
        assert not await store.release(lease, seen_tail=row.inbox_tail, how="done")

    async def test_news_does_not_count_as_a_message(self, store: Store) -> None:
        await in_background(store)
        await store.end_task(await task_row(store), ending(), notice(), host=HERE)
        row = await store.row(KEY)
        assert row is not None
        assert row.waiting_messages == 0
        assert not await store.remove_item(KEY, f"task:{T1}:completed")
        await send(store, "m", only_if_idle=True)
        stopped = await stop(store)
        assert [item.key for item in getattr(stopped, "removed", ())] == ["m"]
        assert keys_of(await store.waiting_items(KEY)) == [f"task:{T1}:completed"]

    # Hosts

    async def test_only_its_own_host_corrects_a_lost_task(self, store: Store) -> None:
        await in_background(store)
        row = await task_row(store)
        assert await store.end_task(row, ending("lost", None), notice("lost"), host=THERE)
        assert (await task_row(store)).status == "lost"
        assert [row.task_id for row in await store.host_tasks(HERE)] == [T1], "its own host still has to report"
        assert not await store.end_task(row, ending(), notice(), host=THERE)
        assert not await store.end_task(row, ending(), notice(), host="a third one")
        assert (await task_row(store)).status == "lost"
        assert await store.end_task(row, ending(), notice(), host=HERE)
        assert (await task_row(store)).status == "completed"
        assert await pending_news(store) == [(T1, "lost"), (T1, "completed")]
        assert not await store.end_task(row, ending("lost", None), notice("lost"), host=THERE)
        assert await store.host_tasks(HERE) == ()

    async def test_tasks_of_a_silent_host_are_strays(self, store: Store, age_tasks: AgeTasks) -> None:
        await in_background(store, task())
        await store.see_host(HERE)
        assert await store.stray_tasks(THERE, silent_seconds=HOUR) == ()
        await age_tasks(HOUR)
        assert (await task_row(store)).host_silent_ms >= HOUR * 1000
        assert [row.task_id for row in await store.stray_tasks(THERE, silent_seconds=HOUR)] == [T1]
        assert await store.stray_tasks(HERE, silent_seconds=HOUR) == (), "a host has no strays of its own"
        await store.see_host(HERE)
        assert (await task_row(store)).host_silent_ms < HOUR * 1000
        assert await store.stray_tasks(THERE, silent_seconds=HOUR) == ()
        await store.end_task(await task_row(store), ending(), notice(), host=HERE)
        await age_tasks(HOUR)
        assert await store.stray_tasks(THERE, silent_seconds=HOUR) == ()

    async def test_new_task_is_no_stray_before_its_host_could_report(self, store: Store, age_tasks: AgeTasks) -> None:
        await in_background(store, task(started_at=1000))
        assert await store.stray_tasks(THERE, silent_seconds=HOUR) == ()
        await age_tasks(HOUR)
        assert [row.task_id for row in await store.stray_tasks(THERE, silent_seconds=HOUR)] == [T1]

    @pytest.mark.parametrize("minutes_off", [-61, 61])
    async def test_wrong_clock_makes_no_task_a_stray(
        self, open_store: OpenStore, age_tasks: AgeTasks, minutes_off: int
    ) -> None:
        """Neither a process's report about its own host nor its view of other hosts depends on its clock."""
        now = SystemClock().now_ms()
        exact = await open_store(node="exact")
        wrong = await open_store(node="wrong", clock=ManualClock(start_ms=now + minutes_off * 60_000))
        await in_background(exact, task(started_at=now))
        await exact.see_host(HERE)
        assert await wrong.stray_tasks(THERE, silent_seconds=HOUR) == ()
        await age_tasks(HOUR)
        await wrong.see_host(HERE)
        assert await exact.stray_tasks(THERE, silent_seconds=HOUR) == ()
        assert await wrong.stray_tasks(THERE, silent_seconds=HOUR) == ()
        await age_tasks(HOUR)
        assert len(await exact.stray_tasks(THERE, silent_seconds=HOUR)) == 1
        assert len(await wrong.stray_tasks(THERE, silent_seconds=HOUR)) == 1

    async def test_foreground_command_is_no_stray(self, store: Store) -> None:
        """The holder watches a foreground command itself, without reports of its host."""
        lease = await in_front(store)
        assert await store.stray_tasks(THERE, silent_seconds=0) == ()
        await commit(store, lease, ends_commands=True)
        assert [row.task_id for row in await store.stray_tasks(THERE, silent_seconds=0)] == [T1]

    # Stalls

    async def test_task_is_reported_stalled_once_and_its_end_as_well(self, store: Store, open_store: OpenStore) -> None:
        await in_background(store)
        row = await task_row(store)
        other = await open_store()
        tries = [each.stall_task(row, notice("stalled")) for each in (store, other) for _ in range(4)]
        assert sum(await asyncio.gather(*tries)) == 1
        stalled = await task_row(store)
        assert (stalled.stalled, stalled.status) == (True, "running")
        assert await can_be_claimed(store)
        assert await store.end_task(row, ending(), notice(), host=HERE)
        assert not (await task_row(store)).stalled
        assert not await store.stall_task(row, notice("stalled")), "the task has ended"
        assert await pending_news(store) == [(T1, "stalled"), (T1, "completed")]

    async def test_task_that_stalls_again_gives_no_second_notice(self, store: Store) -> None:
        await in_background(store)
        row = await task_row(store)
        assert not await store.stall_task(row, None), "the task was not stalled"
        assert await store.stall_task(row, notice("stalled"))
        assert await store.stall_task(row, None)
        assert not (await task_row(store)).stalled
        assert await store.stall_task(row, notice("stalled"))
        assert (await task_row(store)).stalled
        assert await pending_news(store) == [(T1, "stalled")]

    async def test_foreground_command_is_not_reported_stalled(self, store: Store) -> None:
        await in_front(store)
        assert not await store.stall_task(await task_row(store), notice("stalled"))
        assert await pending_news(store) == []

    # Kills

    async def test_kill_request_is_kept_until_the_task_ends(self, store: Store) -> None:
        await in_background(store)
        assert await store.ask_kill(KEY, T1, "person")
        assert not await store.ask_kill(KEY, T1, "model"), "an earlier request stands"
        assert [(row.task_id, row.kill_asked) for row in await store.host_tasks(HERE)] == [(T1, "person")]
        assert await store.end_task(await task_row(store), ending("killed"), notice("killed"), host=HERE)
        assert (await task_row(store)).kill_asked is None
        assert not await store.ask_kill(KEY, T1, "person"), "the task has ended"

    async def test_missing_or_foreign_task_cannot_be_killed(self, store: Store) -> None:
        await in_background(store)
        assert not await store.ask_kill(KEY, T2, "person")
        assert not await store.ask_kill(OTHER, T1, "person")
        assert not await store.ask_kill(SOMEBODY_ELSES, T1, "person")
        assert (await task_row(store)).kill_asked is None

    async def test_stop_overrides_other_kill_requests(self, store: Store) -> None:
        """No one needs the result of a call whose turn is over."""
        lease = await in_front(store)
        assert await store.ask_kill(KEY, T1, "person")
        await commit(store, lease, ends_commands=True)
        assert (await task_row(store)).kill_asked == "stop"

    # Visibility

    async def test_commands_are_listed_in_the_order_of_their_start_and_only_to_their_owner(self, store: Store) -> None:
        await in_background(store, task(T2, started_at=5), task(T1, started_at=9))
        assert [row.task_id for row in await store.tasks(KEY)] == [T2, T1]
        assert [row.task_id for row in await store.owner_tasks(KEY.owner)] == [T2, T1]
        assert await store.tasks(SOMEBODY_ELSES) == ()
        assert await store.task(SOMEBODY_ELSES, T1) is None
        assert await store.owner_tasks(SOMEBODY_ELSES.owner) == ()
        assert await store.tasks(OTHER) == ()
        assert await store.task(OTHER, T1) is None

    async def test_running_tasks_include_foreground_and_background(self, store: Store) -> None:
        rows = (task(T1, started_at=9), task(T2, started_at=5), task(TaskId("t3")), task(TaskId("t4")))
        lease = await in_front(store, *rows)
        changes = (TaskChange(task_id=T1, goes_on=True), TaskChange(task_id=TaskId("t3"), ending=ending()))
        await commit(store, lease, changes_tasks=changes)
        await store.end_task(await task_row(store, TaskId("t4")), ending("lost", None), None, host=THERE)
        assert [row.task_id for row in await store.running_tasks(KEY)] == [T2, T1]
        assert await store.running_tasks(OTHER) == ()
        assert await store.running_tasks(SOMEBODY_ELSES) == ()
        await store.delete(KEY)
        assert await store.running_tasks(KEY) == ()

    async def test_the_same_id_in_another_session_is_another_task(self, store: Store) -> None:
        await in_background(store)
        await create(store, OTHER)
        await send(store, "m", key=OTHER)
        lease = next(claim.lease for claim in await store.claim(limit=MANY) if claim.lease.key == OTHER)
        await commit(store, lease, opens_tasks=(task(key=OTHER),))
        assert await store.end_task(await task_row(store), ending(), notice(), host=HERE)
        assert [row.status for row in await store.tasks(OTHER)] == ["running"]
        assert not [item for item in await store.waiting_items(OTHER) if isinstance(item.item, TaskNews)]

    async def test_any_text_can_be_kept(self, store: Store) -> None:
        odd = "\0\u2028é𝄞\ud800"
        await in_front(store, task(command=odd, description=odd, alias=odd))
        row = await task_row(store)
        assert row.command == row.description == row.alias == "\0\u2028é𝄞�"

    # Deleted sessions

    async def test_commands_of_a_deleted_session_are_hidden_and_marked_for_kill(self, store: Store) -> None:
        lease = await in_front(store, task(), task(T2), task(TaskId("t3")))
        changes = (TaskChange(task_id=T2, goes_on=True), TaskChange(task_id=TaskId("t3"), ending=ending()))
        await commit(store, lease, changes_tasks=changes)
        row = await task_row(store)
        assert await store.delete(KEY)
        assert await store.tasks(KEY) == ()
        assert await store.task(KEY, T1) is None
        assert await store.owner_tasks(KEY.owner) == ()
        left = await store.host_tasks(HERE)
        assert sorted((kept.task_id, kept.kill_asked) for kept in left) == [
            ("t1", "deletion"),
            ("t2", "deletion"),
            ("t3", "deletion"),
        ]
        assert {(kept.command, kept.description) for kept in left} == {("", "")}, "the text of the commands is deleted"
        assert {kept.call_key for kept in left} == {row.call_key, "m:call-t2", "m:call-t3"}
        late = Unit(key=KEY, fence=lease.fence, opens_tasks=(task(TaskId("t4")),))
        assert isinstance(await store.commit(late), FenceMissed)

    async def test_end_of_a_command_of_a_deleted_session_gives_no_news(self, store: Store) -> None:
        await in_background(store)
        row = await task_row(store)
        await store.delete(KEY)
        await store.end_task(row, ending(), notice(), host=HERE)
        assert await store.waiting_items(KEY) == ()
        assert [(left.task_id, left.kill_asked) for left in await store.host_tasks(HERE)] == [(T1, "deletion")]
        assert not await store.ask_kill(KEY, T1, "person")
        assert await store.drop_task(KEY, T1)
        assert not await store.drop_task(KEY, T1)
        assert await store.host_tasks(HERE) == ()

    async def test_commands_of_a_deleted_session_on_a_dead_host_are_strays(self, store: Store) -> None:
        await in_background(store)
        await store.end_task(await task_row(store), ending(), notice(), host=HERE)
        await store.delete(KEY)
        assert [row.kill_asked for row in await store.stray_tasks(THERE, silent_seconds=0)] == ["deletion"]

    # Expiry

    async def test_only_tasks_that_ended_long_ago_are_dropped(self, store: Store, age_tasks: AgeTasks) -> None:
        rows = (task(), task(T2), task(TaskId("t3")), task(TaskId("t4")), task(TaskId("t5")))
        lease = await in_front(store, *rows)
        changes = [TaskChange(task_id=row.task_id, goes_on=True) for row in rows[:4]]
        in_turn = TaskChange(task_id=TaskId("t5"), ending=ending())
        await commit(store, lease, changes_tasks=(*changes, in_turn))
        await store.end_task(await task_row(store), ending(), notice(), host=HERE)
        await store.end_task(await task_row(store, TaskId("t4")), ending("lost"), None, host=THERE)
        assert await store.drop_old_tasks(ended_seconds=HOUR) == 0
        await age_tasks(HOUR)
        await store.end_task(await task_row(store, T2), ending(), notice(task_id=T2), host=HERE)
        assert await store.drop_old_tasks(ended_seconds=HOUR) == 3
        assert [row.task_id for row in await store.tasks(KEY)] == ["t2", "t3"]
        assert await pending_news(store) == [(T1, "completed"), (T2, "completed")], "the news of a dropped task is kept"
        await store.delete(KEY)
        await age_tasks(HOUR)
        assert await store.drop_old_tasks(ended_seconds=HOUR) == 0

    @pytest.mark.parametrize("minutes_off", [-61, 61])
    async def test_wrong_clock_drops_no_task_early_and_none_late(
        self, open_store: OpenStore, age_tasks: AgeTasks, minutes_off: int
    ) -> None:
        """Neither the end that a process records nor its view of other ends depends on its clock."""
        now = SystemClock().now_ms()
        exact = await open_store(node="exact")
        wrong_now = now + minutes_off * 60_000
        wrong = await open_store(node="wrong", clock=ManualClock(start_ms=wrong_now))
        await in_background(exact, task(), task(T2))
        await exact.end_task(await task_row(exact), ending(ended_at=now), None, host=HERE)
        await wrong.end_task(await task_row(wrong, T2), ending(ended_at=wrong_now), None, host=HERE)
        for store in (exact, wrong):
            assert await store.drop_old_tasks(ended_seconds=HOUR) == 0
        await age_tasks(HOUR)
        assert await wrong.drop_old_tasks(ended_seconds=HOUR) == 2
