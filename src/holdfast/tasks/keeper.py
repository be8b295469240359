"""Watches this machine's tasks until they end, detects stalls, and carries out kills.

The keeper holds no state that matters. After a crash the next one reads the rows and watches what they name; ends that
happened meanwhile are reported then, once. Any number of processes may keep the same tasks: the store accepts only the
first report.
"""

import asyncio
import contextlib
import logging
from types import TracebackType
from typing import Self

import msgspec

from holdfast.commands.command import CommandStatus
from holdfast.commands.commands import Commands
from holdfast.commands.errors import CommandRefused, CommandsError, NoSuchCommand
from holdfast.events.ids import Key, TaskId
from holdfast.live.live import Changed, Live
from holdfast.store import crash_points
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import Store
from holdfast.store.tasks import TaskEnding, TaskRow
from holdfast.tasks.desk import TaskDesk, command_key
from holdfast.tasks.endings import notice_of, stall_notice_of
from holdfast.tasks.prompts import looks_like_a_prompt

log = logging.getLogger(__name__)


class KeeperTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals and timeouts of a task keeper."""

    look_every_seconds: float = 1.0
    stall_after_seconds: float = 45.0
    """Time without new output after which a last line that looks like a prompt counts as a stall."""
    heartbeat_every_seconds: float = 30.0
    """Interval of this machine's heartbeat, which shows that it watches its tasks."""
    lost_after_seconds: float = 3600.0
    """The tasks of a machine without a heartbeat for this long are given up as lost."""
    retention_seconds: float = 86_400.0
    """How long an ended task is remembered."""
    sweep_every_seconds: float = 600.0


class TaskKeeper:
    """Watches the tasks of one machine. An async context manager; leaving it ends no task."""

    def __init__(
        self,
        store: Store,
        commands: Commands,
        desk: TaskDesk,
        live: Live,
        clock: Clock,
        care: KeeperTimings | None = None,
    ) -> None:
        self._store = store
        self._commands = commands
        self._desk = desk
        self._live = live
        self._clock = clock
        self._care = care or KeeperTimings()
        self._watching: dict[tuple[Key, TaskId], asyncio.Task[None]] = {}
        self._killing: set[tuple[Key, TaskId]] = set()
        self._woken = asyncio.Event()
        self._duty: asyncio.Task[None] | None = None
        self._heartbeat_at = float("-inf")
        self._swept_at = float("-inf")

    async def __aenter__(self) -> Self:
        self._duty = asyncio.create_task(self._keep(), name="tasks: keep")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        tasks = [task for task in (self._duty, *self._watching.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def look(self) -> None:
        """Wakes the keeper after a change, instead of at the next poll."""
        self._woken.set()

    async def _keep(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self._look()
            except StoreError as error:
                log.warning("could not look after tasks: %s", error.message)
            except Exception:
                log.exception("could not look after tasks")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._care.look_every_seconds):
                    await self._woken.wait()

    async def _look(self) -> None:
        rows = await self._store.host_tasks(self._desk.host)
        for row in rows:
            name = (row.key, row.task_id)
            watched = self._watching.get(name)
            if watched is None:
                self._start(row)
            elif row.kill_asked is not None and name not in self._killing:
                watched.cancel()  # The watcher does not kill; the next poll starts one that does.
        now = self._clock.monotonic()
        if now - self._heartbeat_at >= self._care.heartbeat_every_seconds:
            self._heartbeat_at = now
            await self._store.see_host(self._desk.host)
        if now - self._swept_at >= self._care.sweep_every_seconds:
            self._swept_at = now
            await self._sweep()

    def _start(self, row: TaskRow) -> None:
        name = (row.key, row.task_id)
        if row.kill_asked is not None:
            self._killing.add(name)
        task = asyncio.create_task(self._care_for(row), name=f"task {row.task_id}")
        self._watching[name] = task
        task.add_done_callback(lambda _: self._ended(name))

    def _ended(self, name: tuple[Key, TaskId]) -> None:
        self._watching.pop(name, None)
        self._killing.discard(name)

    async def _care_for(self, row: TaskRow) -> None:
        """Kills or watches one task. After an error, a later poll tries again."""
        try:
            if row.kill_asked is not None:
                await self._kill(row)
            else:
                await self._watch(row)
        except (CommandsError, StoreError) as error:
            log.warning("task %s could not be looked after: %s", row.task_id, error)
            await self._clock.sleep(self._care.look_every_seconds)
        except Exception:
            log.exception("task %s could not be looked after", row.task_id)
            await self._clock.sleep(self._care.look_every_seconds)

    # Watching

    async def _watch(self, row: TaskRow) -> None:
        is_stalled, patience = row.stalled, self._care.stall_after_seconds
        status = await self._current_status(row)
        while status.outcome is None:
            quiet = self._clock.now_ms() / 1000 - max(status.last_output_at, row.started_at / 1000)
            if quiet < self._care.stall_after_seconds:
                is_stalled = is_stalled and not await self._went_on(row)
                patience = self._care.stall_after_seconds - quiet
            else:
                is_stalled = is_stalled or await self._seems_stuck(row)
                patience = self._care.stall_after_seconds
            if is_stalled:
                status = await self._commands.wait_for_output(command_key(row), status.output_bytes)
            else:
                status = await self._commands.wait(command_key(row), patience)
        await self._desk.settle(row, status)

    async def _current_status(self, row: TaskRow) -> CommandStatus:
        status = await self._commands.status(command_key(row))
        return status or await self._commands.adopt(command_key(row))

    async def _seems_stuck(self, row: TaskRow) -> bool:
        """Marks the task as stalled if its last line looks like a prompt. The notice is sent once, however often this
        happens."""
        if not looks_like_a_prompt(await self._desk.last_bytes(row)):
            return False
        tail = await self._desk.tail(row)
        await self._store.stall_task(row, stall_notice_of(self._desk.without_secrets(row), tail, self._clock.now_ms()))
        self._live.publish(row.key, Changed())
        return True

    async def _went_on(self, row: TaskRow) -> bool:
        await self._store.stall_task(row, None)
        self._live.publish(row.key, Changed())
        return True

    # Kills

    async def _kill(self, row: TaskRow) -> None:
        """Carries out a kill that a process requested, and possibly died before doing."""
        if row.status == "running":
            try:
                await self._desk.carry_out(row)
            except NoSuchCommand:  # A process that is late to start the command must not be able to.
                await self._desk.settle(row, await self._commands.adopt(command_key(row)))
        if row.kill_asked == "deletion":
            await self._forget(row)
            await self._store.drop_task(row.key, row.task_id)

    async def _forget(self, row: TaskRow) -> None:
        """Removes the command's records. A crash before this leaves them to the next keeper, as its row is still there;
        after it, only the row is left to drop."""
        crash_points.reach("forget_command:command:before")
        try:
            await self._commands.forget(command_key(row))
        except CommandRefused:  # Its leftover processes still run.
            await self._commands.kill(command_key(row))
            await self._commands.forget(command_key(row))
        crash_points.reach("forget_command:command:after")

    # Housekeeping

    async def _sweep(self) -> None:
        await self._store.drop_old_tasks(ended_seconds=self._care.retention_seconds)
        for row in await self._store.stray_tasks(self._desk.host, silent_seconds=self._care.lost_after_seconds):
            await self._give_up(row)

    async def _give_up(self, row: TaskRow) -> None:
        """Records a task of a silent machine as lost. If the machine comes back, it corrects that."""
        if row.kill_asked == "deletion":
            await self._store.drop_task(row.key, row.task_id)
            return
        detail = "The machine that it ran on has stopped sending heartbeats."
        ending = TaskEnding(status="lost", detail=detail, ended_at=self._clock.now_ms())
        notice = notice_of(self._desk.without_secrets(row), ending, "")
        if await self._store.end_task(row, ending, notice, host=self._desk.host):
            self._live.publish(row.key, Changed())
