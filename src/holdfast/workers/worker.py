"""Runs the sessions of this process: the claimer takes leases, the runner runs each session in a task of its own, the
keeper renews the leases, and the holds release them."""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.events.ids import random_id
from holdfast.files.files import Files
from holdfast.live.live import Live
from holdfast.models.credentials import Credentials
from holdfast.observability.observer import Observer
from holdfast.session.bounds import Bounds
from holdfast.session.prompt import Prompt
from holdfast.session.state import Phase
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import Store
from holdfast.tasks.shell import Shell
from holdfast.tools.registry import Registry
from holdfast.tools.working_directory import Identify, identity_of
from holdfast.turns.call_context import Models
from holdfast.turns.cancelled_tools import GIVE_UP_SECONDS
from holdfast.turns.held_session import MayWorkIn, nowhere
from holdfast.turns.prompts import Prompts
from holdfast.workers.claimer import Claimer
from holdfast.workers.holds import Holds
from holdfast.workers.lease_keeper import LeaseKeeper
from holdfast.workers.pace import Pace
from holdfast.workers.session_run import SessionRunner

SETTLE_EVERY_SECONDS = 60.0
"""How often a process looks for money that dead processes had reserved."""

log = logging.getLogger(__name__)


class Worker:
    """Runs sessions; one per process. Stopping it hands over or drops its sessions; nothing acknowledged is lost."""

    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        clock: Clock,
        bounds: Bounds,
        pace: Pace,
        node: str,
        registry: Registry,
        models: Models,
        credentials: Credentials | None = None,
        shell: Shell | None = None,
        files: Files | None = None,
        instructions: str = "",
        compaction_model: str | None = None,
        fallback_model: str | None = None,
        observer: Observer | None = None,
        new_id: Callable[[], str] = random_id,
        may_work_in: MayWorkIn = nowhere,
        identify: Identify = identity_of,
    ) -> None:
        self._store = store
        self._live = live
        self._clock = clock
        wakeup = asyncio.Event()
        self.holds = Holds(store, live, wakeup=wakeup, max_sessions=pace.max_sessions)
        self.keeper = LeaseKeeper(
            store,
            clock,
            ttl_seconds=pace.lease_ttl_seconds,
            renew_every_seconds=pace.renew_every_seconds,
            margin_seconds=pace.lease_margin_seconds,
            listen_every_seconds=pace.listen_every_seconds,
            on_lost=self.holds.lose,
        )
        self._runner = SessionRunner(
            store=store,
            live=live,
            clock=clock,
            bounds=bounds,
            pace=pace,
            node=node,
            registry=registry,
            models=models,
            credentials=credentials,
            shell=shell,
            files=files,
            prompts=Prompts(store, Prompt(instructions=instructions, tools=registry.specs())),
            compaction_model=compaction_model,
            fallback_model=fallback_model,
            observer=observer or Observer(clock),
            new_id=new_id,
            may_work_in=may_work_in,
            identify=identify,
            holds=self.holds,
            keeper=self.keeper,
            wakeup=wakeup,
        )
        self._claimer = Claimer(
            store=store,
            clock=clock,
            pace=pace,
            holds=self.holds,
            keeper=self.keeper,
            runner=self._runner,
            wakeup=wakeup,
        )
        self._claiming: asyncio.Task[None] | None = None
        """The task of the claimer. None: the worker was not started."""
        self._duties: list[asyncio.Task[None]] = []
        """The other long-lived tasks: the lease keeper and the watch on other processes."""
        self._stopping: asyncio.Future[None] | None = None
        self._grace_is_over = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.keeper.renew()
        self._stop_listening = self._live.on_change(self._claimer.wake)
        self._claiming = asyncio.create_task(self._claimer.run())
        duties = (self.keeper.run(), self._watch_other_processes(), self._settle_reservations())
        self._duties = [asyncio.create_task(duty) for duty in duties]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(grace_seconds=0)

    @property
    def sessions_held(self) -> int:
        """How many sessions this process holds, including those that are still loading."""
        return self.holds.sessions

    @property
    def turns_running(self) -> int:
        """How many of them are in a turn that runs, and does not wait for a person or a client."""
        return sum(loop.session.state.phase not in (Phase.IDLE, Phase.WAITING) for loop in self.holds.loops())

    @property
    def lost_leases(self) -> int:
        """How often this process lost a session, or could not be sure that it still held it."""
        return self.holds.lost_leases

    async def _watch_other_processes(self) -> None:
        """Notice what other processes commit to the same store, while this process holds or reads a session."""
        async for _ in self._store.changes(wanted=self._has_listeners):
            if self._live.others_wrote() and self.keeper.sessions:
                await self.keeper.listen()

    async def _settle_reservations(self) -> None:
        """Charge what dead processes had reserved for model calls."""
        while True:
            await self._clock.sleep(SETTLE_EVERY_SECONDS)
            try:
                await self._store.settle_left()
            except StoreError as error:
                log.warning("what dead processes reserved was not settled: %s", error.message)

    def _has_listeners(self) -> bool:
        return bool(self.keeper.sessions) or self._live.listening()

    # Stopping

    async def stop(self, *, grace_seconds: float) -> None:
        """Stop claiming; let each session finish its step within `grace_seconds`; then release all sessions.

        Returns when all of that is done, however often it is called. The shortest grace of all calls counts, and a
        caller that is cancelled ends the grace."""
        if self._claiming is None:
            return
        if self._stopping is None:
            self.holds.draining = True
            self._stop_listening()
            self._claiming.cancel()  # Once: the claimer still hands over what a pending claim returns.
            self._stopping = asyncio.ensure_future(self._stop(self._claiming))
        try:
            if grace_seconds > 0:
                await asyncio.wait((self._stopping,), timeout=grace_seconds)
        finally:
            self._grace_is_over.set()
        await asyncio.shield(self._stopping)

    async def _stop(self, claiming: asyncio.Task[None]) -> None:
        await self._runner.titles.stop()
        for loop in self.holds.loops():
            loop.draining = True
            loop.session.wake()
        await self._drain()
        ending = self.holds.tasks()
        self.holds.end_all()
        for duty in self._duties:
            duty.cancel()
        await asyncio.gather(*ending, claiming, *self._duties, return_exceptions=True)
        await self.holds.retry_releases()
        if self._runner.orphans:
            await asyncio.wait(tuple(self._runner.orphans), timeout=GIVE_UP_SECONDS)

    async def _drain(self) -> None:
        """Wait until every session has finished its step, or the grace is over."""
        tasks = self.holds.tasks()
        if not tasks or self._grace_is_over.is_set():
            return
        stepping = asyncio.ensure_future(asyncio.wait(tasks))
        over = asyncio.ensure_future(self._grace_is_over.wait())
        await asyncio.wait((stepping, over), return_when=asyncio.FIRST_COMPLETED)
        for waiter in (stepping, over):
            waiter.cancel()
        await asyncio.gather(stepping, over, return_exceptions=True)
