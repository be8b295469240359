"""The process that a crash campaign kills: a store, a worker and a client, playing one stage of a scenario."""

import asyncio
import contextlib
import functools
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast import event_loop
from holdfast.commands.command import Limits
from holdfast.commands.commands import Commands
from holdfast.commands.isolation import Unconfined
from holdfast.commands.redaction import Redaction
from holdfast.commands.service import SupervisorSettings
from holdfast.events.ids import Key, Owner
from holdfast.files.files import FileLimits, Files
from holdfast.files.folder import ObjectFolder
from holdfast.live.local import LocalLive
from holdfast.models.choice import ModelChoice
from holdfast.models.info import BOUNDLESS, ModelInfo
from holdfast.models.model import Model
from holdfast.models.scripted import Failure, Reply, Rule, Script
from holdfast.server.operations import Operations, SessionOptions
from holdfast.server.operations.tasks import TaskOperations
from holdfast.session.bounds import Bounds
from holdfast.store import crash_points
from holdfast.store import webhooks as webhook_rules
from holdfast.store.clock import SystemClock
from holdfast.store.postgres import connections, liveness
from holdfast.store.postgres import leases as postgres_leases
from holdfast.store.postgres import rows as postgres_rows
from holdfast.store.postgres import store as postgres_store
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite import leases as sqlite_leases
from holdfast.store.sqlite import rows as sqlite_rows
from holdfast.store.sqlite import writer
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Loaded, Store
from holdfast.tasks.desk import TaskDesk
from holdfast.tasks.keeper import KeeperTimings, TaskKeeper
from holdfast.tasks.shell import Shell
from holdfast.tools.registry import Registry
from holdfast.tools.tool import ToolContext
from holdfast.turns import load
from holdfast.webhooks import deliverer
from holdfast.webhooks.addresses import ReceiverRules
from holdfast.webhooks.deliverer import Deliverer
from holdfast.webhooks.receivers import HttpReceivers
from holdfast.webhooks.secrets import WebhookSecrets
from holdfast.workers.pace import Pace
from holdfast.workers.worker import Worker
from proof.crash import defects, postgres_trials, receiver
from proof.crash import plant as planting
from proof.crash.budget_scenarios import LONGEST
from proof.crash.client import LOOK_SECONDS, SECRET_KEY, Client
from proof.crash.evidence import FILES
from proof.crash.journal import Begun, Died, Failed, Journal, Passed, path_of, read
from proof.crash.scenario import Program, Scenario
from proof.crash.stage import TOOL_NAMES, StagedModel, tools_for
from proof.crash.trial import Database
from proof.power_cut import victim as power_cut

COMMANDS = "commands"
WORK = "work"

STUCK_SECONDS = 15.0
"""A stage takes some milliseconds; what takes this long will never end."""
STUCK_WITH_DEFECT_SECONDS = 3.0
"""Where something is expected to be wrong, being sure matters less than being done."""

LAG_SECONDS = 0.01

ALIVE_SECONDS = 0.6
SHOW_LIFE_SECONDS = 0.1
"""The heartbeat of a process on PostgreSQL whose death others are to notice soon."""

FROZEN_TRANSACTION_MILLISECONDS = 300
"""How long PostgreSQL lets a frozen process of a campaign hold rows. The product gives it more time."""
LONGEST_TRANSACTION_MILLISECONDS = 2000
"""The same for one that it does not see to be frozen, as it is between preparing a statement and running it."""

READING = 1
WRITING = 2
"""Connections of a process. Most of a trial's cost is PostgreSQL planning the same statements in each connection."""

BOUNDS = Bounds(
    linger_seconds=0.02,
    backoff_seconds=0.005,
    max_backoff_seconds=0.01,
    # Every process that is killed may see the scripted failure once more.
    max_model_attempts=20,
    snapshot_every_events=5,
)

ATTEMPTS_BEFORE_FALLBACK = 3
"""Of a model that is always unavailable."""

UNAVAILABLE = Script((Rule((Reply(fail=Failure(kind="unavailable")),)),))

PATIENT = Pace(claim_every_seconds=0.05, listen_every_seconds=0.05)

HASTY = Pace(
    lease_ttl_seconds=0.6,
    renew_every_seconds=0.1,
    lease_margin_seconds=0.1,
    claim_every_seconds=0.05,
    listen_every_seconds=0.05,
)
"""For a process that another is to take over from although it lives."""


QUICK_SUPERVISOR = SupervisorSettings(idle_seconds=2.0)
"""The runner ends it after the trial, if it has not ended by then."""

CARE = KeeperTimings(look_every_seconds=0.01, stall_after_seconds=0.03, sweep_every_seconds=0.02)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The job of one process in a trial."""

    scenario: Scenario
    stage: int
    process: int
    folder: Path
    aim: str = ""
    freezes: bool = False
    """Stop at the aim instead of dying."""
    is_hasty: bool = False
    """Its leases are over soon after its end, and so is its presence."""
    is_companion: bool = False
    notes_points: bool = False
    seed: int = 0
    defect: str = ""
    loses_power: bool = False
    """Its operations on the database's files are recorded, and each is a crash point as well."""

    @property
    def node(self) -> str:
        nodes, companion = self.scenario.nodes, self.scenario.companion
        return companion.node if companion and self.is_companion else nodes[min(self.stage, len(nodes) - 1)]

    @property
    def lacks(self) -> tuple[str, ...]:
        companion = self.scenario.companion
        return companion.lacks if companion and self.is_companion else ()

    @property
    def programs(self) -> dict[Key, tuple[Scenario, Program]]:
        """The programs of this process, by session."""
        companion = self.scenario.companion
        plays = companion.plays if companion and self.is_companion else ()
        own = [(story, story.stages) for story in self.scenario.stories if story.by_companion == self.is_companion]
        shared = [(self.scenario, plays)] if plays else []
        return {story.key: (story, stages[self.stage]) for story, stages in (*own, *shared)}

    @property
    def end_of_stage(self) -> Path:
        """The file that signals the end of the stage to a companion."""
        return self.folder / f"over-{self.stage}"

    @property
    def end_of_companion(self) -> Path:
        """The file that signals to the others that the companion's part of the stage is done."""
        return self.folder / f"companion-{self.stage}"

    def file(self, kind: str, key: Key) -> Path:
        return path_of(self.folder, kind, key, first=self.scenario.key)

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
            power_cut.begin(part.folder, part.process, part.defect, part.database)
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
            self._journal.add(
                Passed(
                    process=self._part.process,
                    stage=self._part.stage,
                    point=point,
                    by_companion=self._part.is_companion,
                )
            )
        if self._name in (point, "*") and self._passed[self._name] == self._occurrence:
            self._journal.add(Died(process=self._part.process, point=point))
            # This very thread, at once: otherwise it might run on, into a transaction, until another one is stopped.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if self._part.freezes else signal.SIGKILL)


async def _play(part: Part, journal: Journal) -> None:
    """Open, play, close: the same for the first process and for those that come after a crash."""
    clients: dict[Key, Client] = {}
    _visit_points(part, journal, clients)
    live, clock = LocalLive(), SystemClock()
    store = await _store(part)
    host = part.node if part.scenario.is_placed else None
    operations = Operations(
        store=store, live=live, clock=clock, bounds=BOUNDS, node=part.node, host=host, producer="campaign"
    )
    gates: dict[str, asyncio.Event] = {}
    files = _files(part, store)
    for key in part.programs:
        file = part.file("journal", key)
        own = journal if key == part.scenario.key else Journal(file, part.process)
        clients[key] = Client(operations, key, own, read(file), work=part.folder / WORK, gates=gates)
        clients[key].files = files
    async with contextlib.AsyncExitStack() as running:
        running.push_async_callback(store.close)
        shell = await _shell(part, store, live, clients, running) if part.scenario.has_commands else None
        await running.enter_async_context(_worker(part, store, live, clients, shell, journal, files))
        if part.scenario.has_webhook:
            await running.enter_async_context(_deliverer(store))
        for client in clients.values():
            running.push_async_callback(client.leave)
        await _play_all(part, store, clients)


def _visit_points(part: Part, journal: Journal, clients: Mapping[Key, Client]) -> None:
    loop, main = asyncio.get_running_loop(), threading.current_thread()
    aim = Aim(part, journal)

    def tell(point: str) -> None:
        for client in clients.values():
            client.pass_point(point)

    def visit(point: str) -> None:
        aim.reach(point)
        loop.call_soon_threadsafe(tell, point)
        if part.scenario.lags and part.scenario.lags in point and threading.current_thread() is not main:
            time.sleep(LAG_SECONDS)

    crash_points.install(visit)


async def _play_all(part: Part, store: Store, clients: Mapping[Key, Client]) -> None:
    """Play the programs of all sessions at once. A companion stays until the stage is over, and no process leaves
    before the companion is done: some sessions may be for one of them only."""
    programs = part.programs
    try:
        async with asyncio.timeout(STUCK_WITH_DEFECT_SECONDS if part.defect else STUCK_SECONDS):
            await asyncio.gather(*(clients[key].arrive(_options(part, story)) for key, (story, _) in programs.items()))
            await asyncio.gather(*(program(clients[key]) for key, (_, program) in programs.items()))
            if part.is_companion:
                os.close(os.open(part.end_of_companion, os.O_CREAT, 0o600))
                await _appears(part.end_of_stage)
            elif part.scenario.companion is not None:
                await _appears(part.end_of_companion)
    except TimeoutError:
        rows = [(await store.row(key), await store.waiting_items(key), await store.tasks(key)) for key in programs]
        raise Stuck(f"nothing happens any more: {rows}") from None


async def _appears(file: Path) -> None:
    while not os.access(file, os.F_OK):  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(LOOK_SECONDS)


async def _store(part: Part) -> Store:
    url = postgres_trials.url_of(part.folder)
    about = functools.partial(
        dict[str, Any],
        node=part.node,
        tools=frozenset(TOOL_NAMES).difference(part.lacks),
        secret_key=SECRET_KEY,
        clock=SystemClock(),
        limits=part.scenario.limits,
    )()
    if part.scenario.is_deadly_to_load:
        _die_of_loads()
    sqlite_leases.UNPLACED_MS = postgres_leases.UNPLACED_MS = part.scenario.unplaced_ms  # type: ignore[misc]
    if url is not None:
        if part.is_hasty:
            postgres_leases.ALIVE_SECONDS = postgres_leases.FIRST_TTL_SECONDS = ALIVE_SECONDS  # type: ignore[misc]
            liveness.SHOW_LIFE_SECONDS = min(SHOW_LIFE_SECONDS, liveness.SHOW_LIFE_SECONDS)  # type: ignore[misc]
        liveness.SHOW_LIFE_SECONDS = part.scenario.shows_life_every_seconds  # type: ignore[misc]
        postgres_store.READING = READING  # type: ignore[misc]
        postgres_store.WRITING = WRITING  # type: ignore[misc]
        connections._TRANSACTION_BOUND = f"transaction_timeout = {LONGEST_TRANSACTION_MILLISECONDS}"  # type: ignore[misc]
        connections._SETTINGS["idle_in_transaction_session_timeout"] = str(FROZEN_TRANSACTION_MILLISECONDS)
        return await PostgresStore.open(url, **about)
    return await SqliteStore.open(part.folder / "holdfast.db", **about)


def _die_of_loads() -> None:
    """No session is so small that it comes with its claim."""
    for rows in (sqlite_rows, postgres_rows):
        planting.replace(rows, "SMALL_EVENTS", -1)
    fold_loaded = load.fold_loaded

    async def deadly(
        store: Store, loaded: Loaded, claiming: asyncio.Future[Any] | None = None
    ) -> load.FoldedSession | None:
        if loaded.row.turn_id is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return await fold_loaded(store, loaded, claiming)

    planting.replace(load, "fold_loaded", deadly)


def _options(part: Part, story: Scenario) -> SessionOptions:
    if not story.has_commands:
        return story.options
    return msgspec.structs.replace(story.options, working_directory=str(part.folder / WORK))


def _files(part: Part, store: Store) -> Files | None:
    """The files of the trial. A dead process stores nothing any more, so what is left of it may be swept at once."""
    if part.scenario.files is None:
        return None
    folder = part.folder / FILES
    limits = FileLimits(unused_seconds=0, storing_seconds=0)
    return Files(store, lambda: ObjectFolder(folder), SystemClock(), spool_folder=folder, limits=limits)


async def _shell(
    part: Part, store: Store, live: LocalLive, clients: Mapping[Key, Client], running: contextlib.AsyncExitStack
) -> Shell:
    """The commands of the trial, with a task keeper that watches them."""
    clock = SystemClock()
    commands = Commands(part.folder / COMMANDS, settings=QUICK_SUPERVISOR)
    running.push_async_callback(commands.close)
    desk = TaskDesk(store, commands, live, clock, host=await commands.folder_id(), redaction=Redaction())
    care = msgspec.structs.replace(CARE, retention_seconds=part.scenario.retention_seconds)
    keeper = TaskKeeper(store, commands, desk, live, clock, care)
    await running.enter_async_context(keeper)
    for client in clients.values():
        client.tasks = TaskOperations(store, live, desk)
    return Shell(commands, desk, isolation=Unconfined(), limits=Limits(), look=keeper.look)


def _deliverer(store: Store) -> Deliverer:
    """Attempts deliveries soon after they failed."""
    webhook_rules.FIRST_WAIT_MS, webhook_rules.LONGEST_WAIT_MS = 10, 40  # type: ignore[misc]
    deliverer.LOOK_EVERY_SECONDS = 0.01  # type: ignore[misc]
    receivers = HttpReceivers(ReceiverRules(["127.0.0.1"]), attempt_seconds=receiver.ATTEMPT_SECONDS)
    return Deliverer(store, SystemClock(), lambda: receivers, WebhookSecrets(), agent="campaign")


class Stuck(Exception):
    """The program of a scenario waits for something that does not come."""


def _worker(
    part: Part,
    store: Store,
    live: LocalLive,
    clients: Mapping[Key, Client],
    shell: Shell | None,
    journal: Journal,
    files: Files | None = None,
) -> Worker:
    """It runs the sessions of the whole trial, whichever process plays them."""
    rules = tuple(rule for story in part.scenario.stories for rule in story.rules)
    script = Script(rules, varied=True, window=part.scenario.window, summary=part.scenario.summary)
    first = next(iter(clients.values()))
    fallback = part.scenario.fallback
    models: dict[tuple[Key, bool], Model] = {}

    async def of_session(choice: ModelChoice) -> Model:
        fails = fallback is not None and choice.name != fallback
        if (choice.key, fails) not in models:
            played, client = UNAVAILABLE if fails else script, clients.get(choice.key, first)
            price = part.scenario.price
            info = BOUNDLESS if price is None else ModelInfo(max_output=LONGEST, price=price, is_known=True)
            made = StagedModel(played, client, journal, tells_window=part.scenario.tells_window, info=info)
            models[choice.key, fails] = made
        return models[choice.key, fails]

    def effects_of(context: ToolContext) -> Journal:
        key = Key(Owner(context.owner), context.session_id)
        if key not in effects:
            effects[key] = Journal(part.file("effects", key), part.process)
        return effects[key]

    effects: dict[Key, Journal] = {}
    tools = [tool for tool in tools_for(first, journal, effects_of) if tool.name not in part.lacks]
    journal.add(Begun(process=part.process, node=part.node, tools=tuple(tool.name for tool in tools)))
    return Worker(
        store=store,
        live=live,
        clock=SystemClock(),
        bounds=_bounds(part),
        pace=_pace(part),
        node=part.node,
        registry=Registry(tools),
        models=of_session,
        shell=shell,
        files=files,
        fallback_model=fallback,
    )


def _bounds(part: Part) -> Bounds:
    if part.scenario.fallback is None:
        return BOUNDS
    return msgspec.structs.replace(BOUNDS, max_model_attempts=ATTEMPTS_BEFORE_FALLBACK)


def _pace(part: Part) -> Pace:
    pace = msgspec.structs.replace(HASTY if part.is_hasty else PATIENT, max_sessions=part.scenario.places)
    if part.scenario.is_deadly_to_load:
        # It lets others ahead for longer and longer.
        return msgspec.structs.replace(pace, claim_every_seconds=0.01)
    return pace


class _ToJournal(logging.Handler):
    """An exception in the runtime's log is a bug of its own, and so a violation."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.ERROR)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._journal.add(Failed(process=self._journal.process, text=self.format(record)))


def _log_to(journal: Journal) -> None:
    root = logging.getLogger()
    root.handlers[:] = [_ToJournal(journal)]
