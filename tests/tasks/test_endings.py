"""From how a command ended to what its row says and what is told of it."""

from typing import get_args

import pytest

from holdfast.commands.command import CommandOutcome, ProcessInfo, Reason
from holdfast.events.ids import Key, Owner, SessionId, TaskId, ToolCallId
from holdfast.events.task import TaskStatus
from holdfast.store.tasks import Killer, TaskEnding, TaskRow
from holdfast.tasks.endings import MAX_COMMAND_CHARACTERS, ending_of, notice_of, shortened, stall_notice_of

LEFT = ProcessInfo(pid=7, started="x", name="sleep")


def row(*, foreground: bool = False, kill_asked: Killer | None = None, command: str = "make") -> TaskRow:
    return TaskRow(
        key=Key(Owner("ann"), SessionId("s")),
        task_id=TaskId("t1"),
        tool_call_id=ToolCallId("c1"),
        call_key="m1:c1",
        command=command,
        description="Build",
        host="here",
        output_file="/out",
        foreground=foreground,
        started_at=1000,
        kill_asked=kill_asked,
    )


def outcome(reason: Reason = "exited", exit_code: int | None = 0, **more: object) -> CommandOutcome:
    return CommandOutcome(reason=reason, exit_code=exit_code, at=4.5, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (outcome(), "completed"),
        (outcome(exit_code=1), "failed"),
        (outcome(exit_code=137), "failed"),
        (outcome("killed", 143), "killed"),
        (outcome("killed", None), "killed"),
        (outcome("killed", 0), "killed"),
        (outcome("time", 143), "failed"),
        (outcome("lost", None), "lost"),
        (outcome("not_started", None), "failed"),
    ],
)
def test_the_status_says_how_it_ended_and_the_true_exit_code_is_kept(ended: CommandOutcome, status: TaskStatus) -> None:
    found = ending_of(ended, 1800)
    assert (found.status, found.exit_code, found.ended_at) == (status, ended.exit_code, 4500)


def test_every_reason_has_an_ending() -> None:
    assert {ending_of(outcome(reason), 1).status for reason in get_args(Reason)} <= set(get_args(TaskStatus))


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (outcome("time", 143), "1800 seconds"),
        (outcome("lost", None), "How it ended is unknown"),
        (outcome("lost", None, detail="the machine was restarted"), "the machine was restarted"),
        (outcome("not_started", None, detail="no such directory"), "no such directory"),
        (outcome("killed", 137, escaped=(LEFT,)), "sleep (pid 7)"),
        (outcome("time", 137, escaped=(LEFT,)), "sleep (pid 7)"),
        (outcome(left_behind=(LEFT,)), "left something running: sleep (pid 7)"),
    ],
)
def test_why_is_said_where_the_exit_code_does_not_tell(ended: CommandOutcome, words: str) -> None:
    assert words in ending_of(ended, 1800).detail


def test_an_ordinary_end_needs_no_reason() -> None:
    assert ending_of(outcome(exit_code=2), 1800).detail == ""


ENDED = TaskEnding(status="completed", exit_code=0, ended_at=3012)
KILLED = TaskEnding(status="killed", exit_code=143, ended_at=3012)


def test_the_end_of_a_task_is_reported_with_all_that_is_known() -> None:
    told = notice_of(row(), ENDED, "the end\n")
    assert told is not None
    assert (told.task_id, told.kind, told.command, told.description) == ("t1", "completed", "make", "Build")
    assert (told.exit_code, told.duration_ms, told.output_file, told.output_tail) == (0, 2012, "/out", "the end\n")
    assert not told.silent


def test_the_end_of_an_awaited_task_is_reported_in_the_result_of_its_call() -> None:
    assert notice_of(row(foreground=True), ENDED, "") is None
    assert notice_of(row(foreground=True, kill_asked="person"), KILLED, "") is None


@pytest.mark.parametrize(
    ("by", "told"), [(None, "told"), ("person", "told"), ("model", "silent"), ("stop", None), ("deletion", None)]
)
def test_the_killer_of_a_task_decides_whether_its_notice_is_silent(by: Killer | None, told: str | None) -> None:
    found = notice_of(row(kill_asked=by), KILLED, "")
    assert (found and ("silent" if found.silent else "told")) == told


@pytest.mark.parametrize("status", ["completed", "failed", "lost"])
def test_a_task_that_ended_before_the_models_kill_has_a_notice(status: TaskStatus) -> None:
    found = notice_of(row(kill_asked="model"), TaskEnding(status=status, ended_at=2000), "")
    assert found is not None
    assert (found.kind, found.silent) == (status, False)


def test_a_running_task_has_no_notice_of_its_end() -> None:
    assert notice_of(row(), TaskEnding(status="running", ended_at=2000), "") is None


def test_a_stall_says_for_how_long_it_has_run() -> None:
    told = stall_notice_of(row(), "Password:", 46_000)
    assert (told.kind, told.duration_ms, told.output_tail, told.exit_code) == ("stalled", 45_000, "Password:", None)
    assert not told.silent


def test_a_clock_that_was_set_back_makes_no_negative_duration() -> None:
    told = notice_of(row(), TaskEnding(status="completed", ended_at=10), "")
    assert told is not None
    assert told.duration_ms == 0
    assert ending_of(CommandOutcome(reason="exited", exit_code=0, at=-5.0), 1).ended_at == 0


def test_a_long_command_is_shown_by_its_beginning() -> None:
    assert shortened("x" * MAX_COMMAND_CHARACTERS) == "x" * MAX_COMMAND_CHARACTERS
    assert shortened("x" * 9999) == "x" * (MAX_COMMAND_CHARACTERS - 1) + "…"
    told = notice_of(row(command="x" * 9999), ENDED, "")
    assert told is not None
    assert len(told.command) == MAX_COMMAND_CHARACTERS
