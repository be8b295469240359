"""The process that a crash campaign kills: a store, a worker and a client, playing one stage of a scenario."""

import asyncio
import contextlib
import gc
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

import msgspec

from holdfast import event_loop
from holdfast.commands.command import Limits
from holdfast.commands.commands import Commands
from holdfast.commands.isolation import Unconfined
from holdfast.commands.redaction import Redaction
from holdfast.commands.service import Settings
from holdfast.events.ids import Key, Owner, SessionId
from holdfast.live.local import LocalLive
from holdfast.models.choice import ModelChoice
from holdfast.models.model import Model
from holdfast.models.scripted import Script
from holdfast.server.operations import Operations, SessionOptions
from holdfast.server.task_operations import TaskOperations
from holdfast.session.bounds import Bounds
from holdfast.store import crash_points
from holdfast.store.clock import SystemClock
from holdfast.store.postgres import connections, liveness
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite import writer
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Store
from holdfast.store.turn_limits import TurnLimits
from holdfast.tasks.desk import TaskDesk
from holdfast.tasks.keeper import Care, TaskKeeper
from holdfast.tasks.shell import Shell
from holdfast.testing import defects, postgres_trials
from holdfast.testing.client import SECRET_KEY, Client
from holdfast.testing.journal import Died, Failed, Journal, Passed, read
from holdfast.testing.power_cut import victim as power_cut
from holdfast.testing.scenario import Scenario
from holdfast.testing.stage import StagedModel, tools_for
from holdfast.testing.trial import Database
from holdfast.tools.registry import Registry
from holdfast.workers.worker import Pace, Worker

KEY = Key(Owner("somebody"), SessionId("story"))
NODE = "campaign"
COMMANDS = "commands"
WORK = "work"

STUCK_SECONDS = 15.0
"""A stage takes some milliseconds; what takes this long will never end."""
STUCK_WITH_DEFECT_SECONDS = 3.0
"""Where something is expected to be wrong, being sure matters less than being done."""

LAG_SECONDS = 0.01

LIMITS = TurnLimits(running=1, in_flight=1)
"""A crash must leave no slot taken, and no place: the only session there is would never run again."""

FROZEN_TRANSACTION_MILLISECONDS = 300
"""How long PostgreSQL lets a frozen process of a campaign hold rows. The product gives it more time."""
LONGEST_TRANSACTION_MILLISECONDS = 2000
"""The same for one that it does not see to be frozen, as it is between preparing a statement and running it."""

BOUNDS = Bounds(
    linger_seconds=0.02,
    backoff_seconds=0.005,
    max_backoff_seconds=0.01,
    # Every process that is killed may see the scripted failure once more.
    max_model_attempts=20,
    snapshot_every_events=5,
)

PATIENT = Pace(claim_every_seconds=0.05, listen_every_seconds=0.05)

HASTY = Pace(
    lease_ttl_seconds=0.6,
    renew_every_seconds=0.1,
    lease_margin_seconds=0.1,
    claim_every_seconds=0.05,
    listen_every_seconds=0.05,
)
"""For a process that another is to take over from although it lives."""


QUICK_SUPERVISOR = Settings(idle_seconds=2.0)
"""The runner ends it after the trial, if it has not ended by then."""

CARE = Care(look_every_seconds=0.01, stall_after_seconds=0.03, sweep_every_seconds=0.02)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a trial has to do."""

    scenario: Scenario
    stage: int
    process: int
    folder: Path
    aim: str = ""
    freezes: bool = False
    """Stop at the aim instead of dying."""
    is_hasty: bool = False
    notes_points: bool = False
    seed: int = 0
    defect: str = ""
    loses_power: bool = False
    """What it does to the database's files is recorded, and each operation on them is a crash point as well."""

    @property
    def database(self) -> Database:
        return "sqlite" if postgres_trials.url_of(self.folder) is None else "postgresql"


def play(part: Part) -> None:
    """The whole life of a forked process. It never returns."""
    signal.alarm(int(STUCK_SECONDS * 2))
    gc.disable()
    random.seed(part.seed * 1000 + part.process)
    if random.random() < 0.5:
        writer.FOLLOW_SECONDS = 0.0  # Then a message is on disk for a moment before its turn has begun.
    journal = Journal(part.folder / "journal", part.process)
    status = 0
    try:
        _log_to(journal)
        if part.loses_power:
            power_cut.begin(part.folder, part.process, part.defect)
        else:
            defects.plant(part.defect, part.database)
        event_loop.run(_play(part, journal))
    except BaseException:
        journal.add(Failed(process=part.process, text=traceback.format_exc()))
        status = 3
    sys.stdout.flush()
    os._exit(status)


class Aim:
    """The visitor of all crash points of a process: it notes them, and ends the process in the one aimed at."""

    def __init__(self, part: Part, journal: Journal) -> None:
        self._part = part
        self._journal = journal
        self._name, _, occurrence = part.aim.rpartition("#")
        self._occurrence = int(occurrence) if self._name else 0
        self._passed: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        self._passed.update((point, "*"))
        if self._part.notes_points:
            self._journal.add(Passed(process=self._part.process, stage=self._part.stage, point=point))
        if self._name in (point, "*") and self._passed[self._name] == self._occurrence:
            self._journal.add(Died(process=self._part.process, point=point))
            # This very thread, at once: otherwise it might go on, into a transaction, until another one is stopped.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if self._part.freezes else signal.SIGKILL)


async def _play(part: Part, journal: Journal) -> None:
    """Open, play, close: the same for the first process and for those that come after a crash."""
    loop = asyncio.get_running_loop()
    aim, main = Aim(part, journal), threading.current_thread()
    client: Client | None = None

    def visit(point: str) -> None:
        aim.reach(point)
        if client is not None:
            loop.call_soon_threadsafe(client.pass_point, point)
        if part.scenario.lags and part.scenario.lags in point and threading.current_thread() is not main:
            time.sleep(LAG_SECONDS)

    crash_points.install(visit)
    live, clock = LocalLive(), SystemClock()
    store = await _store(part)
    operations = Operations(
        store=store, live=live, clock=clock, bounds=BOUNDS, node=NODE, host=None, producer="campaign"
    )
    client = Client(operations, KEY, journal, read(part.folder / "journal"), work=part.folder / WORK)
    async with contextlib.AsyncExitStack() as running:
        running.push_async_callback(store.close)
        shell = await _shell(part, store, live, client, running) if part.scenario.has_commands else None
        await running.enter_async_context(_worker(part, store, live, client, shell))
        running.push_async_callback(client.leave)
        try:
            async with asyncio.timeout(STUCK_WITH_DEFECT_SECONDS if part.defect else STUCK_SECONDS):
                await client.arrive(_options(part))
                await part.scenario.stages[part.stage](client)
        except TimeoutError:
            row, tasks = await store.row(KEY), await store.tasks(KEY)
            raise Stuck(f"nothing happens any more: {row}, {await store.waiting_items(KEY)}, {tasks}") from None


async def _store(part: Part) -> Store:
    url = postgres_trials.url_of(part.folder)
    if url is not None:
        liveness.SHOW_LIFE_SECONDS = part.scenario.shows_life_every_seconds  # type: ignore[misc]
        connections._TRANSACTION_BOUND = f"transaction_timeout = {LONGEST_TRANSACTION_MILLISECONDS}"  # type: ignore[misc]
        connections._SETTINGS["idle_in_transaction_session_timeout"] = str(FROZEN_TRANSACTION_MILLISECONDS)
        return await PostgresStore.open(url, node=NODE, secret_key=SECRET_KEY, clock=SystemClock(), limits=LIMITS)
    file = part.folder / "holdfast.db"
    return await SqliteStore.open(file, node=NODE, secret_key=SECRET_KEY, clock=SystemClock(), limits=LIMITS)


def _options(part: Part) -> SessionOptions:
    if not part.scenario.has_commands:
        return part.scenario.options
    return msgspec.structs.replace(part.scenario.options, working_directory=str(part.folder / WORK))


async def _shell(
    part: Part, store: Store, live: LocalLive, client: Client, running: contextlib.AsyncExitStack
) -> Shell:
    """The commands of the trial, with somebody who looks after them."""
    clock = SystemClock()
    commands = Commands(part.folder / COMMANDS, settings=QUICK_SUPERVISOR)
    running.push_async_callback(commands.close)
    desk = TaskDesk(store, commands, live, clock, host=await commands.place(), redaction=Redaction())
    care = msgspec.structs.replace(CARE, retention_seconds=part.scenario.retention_seconds)
    keeper = TaskKeeper(store, commands, desk, live, clock, care)
    await running.enter_async_context(keeper)
    client.tasks = TaskOperations(store, live, desk)
    return Shell(commands, desk, isolation=Unconfined(), limits=Limits(), look=keeper.look)


class Stuck(Exception):
    """The program of a scenario waits for something that does not come."""


def _worker(part: Part, store: Store, live: LocalLive, client: Client, shell: Shell | None) -> Worker:
    script = Script(part.scenario.rules, varied=True)
    model: Model = StagedModel(script, client, client.journal)

    async def always(choice: ModelChoice) -> Model:
        return model

    return Worker(
        store=store,
        live=live,
        clock=SystemClock(),
        bounds=BOUNDS,
        pace=HASTY if part.is_hasty else PATIENT,
        node=NODE,
        registry=Registry(tools_for(client, Journal(part.folder / "effects", part.process))),
        models=always,
        shell=shell,
    )


class _ToJournal(logging.Handler):
    """What the runtime logs as an exception is a bug of its own, and so a finding."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.ERROR)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._journal.add(Failed(process=self._journal.process, text=self.format(record)))


def _log_to(journal: Journal) -> None:
    root = logging.getLogger()
    root.handlers[:] = [_ToJournal(journal)]
