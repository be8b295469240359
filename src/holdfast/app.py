"""The composition root, which is the one place that chooses implementations, and the Python API on top of it.

async with Runtime(model="demo") as runtime:
    session = await runtime.session()
    turn = await session.run("Hello")
    print(turn.text)
"""

import asyncio
import logging
import os
import platform
import pwd
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.commands.bubblewrap import Bubblewrap
from holdfast.commands.command import Limits
from holdfast.commands.commands import Commands
from holdfast.commands.isolation import Isolation, NoCommands, Unconfined
from holdfast.commands.redaction import Redaction
from holdfast.commands.service import SupervisorSettings
from holdfast.config import Config, ConfigError, load
from holdfast.events.ids import Key, Owner, SessionId
from holdfast.events.session import ClientTool, SettingsChanged
from holdfast.files.errors import FilesUnavailable
from holdfast.files.files import FileLimits, Files
from holdfast.files.folder import ObjectFolder
from holdfast.files.objects import Objects
from holdfast.live.live import Live
from holdfast.live.local import LocalLive
from holdfast.models.choice import ModelChoice
from holdfast.models.credentials import Credentials
from holdfast.models.errors import ModelNotUsable
from holdfast.models.info import DEFAULT_WINDOW
from holdfast.models.model import Model
from holdfast.observability.figures import Figures
from holdfast.observability.observer import Observer
from holdfast.protocol.file import FileView
from holdfast.protocol.home import Home, source_pieces
from holdfast.protocol.identity import IdentityView
from holdfast.protocol.permission import Permission
from holdfast.protocol.provider import OwnProvider
from holdfast.protocol.session import SessionView
from holdfast.protocol.task import TaskView
from holdfast.server.embedded.session import Session
from holdfast.server.embedded.webhooks import OwnWebhooks
from holdfast.server.given_provider import provider_given, secrets_given
from holdfast.server.operations import Operations, SessionOptions
from holdfast.server.operations.files import FileOperations
from holdfast.server.operations.session_access import provider_in
from holdfast.server.operations.tasks import TaskOperations
from holdfast.server.operations.webhooks import WebhookOperations
from holdfast.server.views.files import file_view
from holdfast.server.views.sessions import session_view
from holdfast.server.views.tasks import task_view
from holdfast.server.views.usage import usage_view
from holdfast.store.audit import Actor, ActorKind
from holdfast.store.budget import SpendLimits
from holdfast.store.clock import Clock, SystemClock
from holdfast.store.errors import StoreUnavailable, StoreUnusable
from holdfast.store.file_access import access_fault, database_files, make_private_folder
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Store
from holdfast.store.survey import ProcessDescription, Role
from holdfast.store.turn_limits import TurnLimits
from holdfast.tasks.desk import TaskDesk
from holdfast.tasks.keeper import KeeperTimings, TaskKeeper
from holdfast.tasks.shell import Shell
from holdfast.tools.built_in import BUILT_IN, COPILOT_SHELL
from holdfast.tools.environment import is_secret
from holdfast.tools.read_attached_file import read_attached_file
from holdfast.tools.recall import recall
from holdfast.tools.registry import Registry
from holdfast.tools.tool import Tool
from holdfast.tools.user_directories import UserDirectories
from holdfast.version import __version__
from holdfast.webhooks.addresses import ReceiverRules
from holdfast.webhooks.deliverer import Deliverer, Receivers
from holdfast.webhooks.secrets import WebhookSecrets
from holdfast.workers.pace import Pace
from holdfast.workers.worker import Worker

if TYPE_CHECKING:
    from holdfast.live.redis import RedisLive
    from holdfast.models.catalogue import ModelSettings
    from holdfast.models.info import TokenPrice
    from holdfast.models.sealer import Sealer
    from holdfast.models.session_models import SessionModels

log = logging.getLogger(__name__)

INSTRUCTIONS = "You are a helpful agent."

SERVING: Final[tuple[Role, ...]] = ("serve", "worker")
"""Roles of processes that run sessions of other users than their own."""

PAGE: Final = 200

SWEEP_SECONDS: Final = 600.0
"""How often files are looked for that nothing needs any more."""

NEEDS_OBSTORE = "A bucket needs the package `obstore`, which is not installed. Run: pip install 'holdfast[buckets]'"

NEEDS_ASYNCPG = "PostgreSQL needs the package `asyncpg`, which is not installed. Run: pip install 'holdfast[cluster]'"


class Runtime(Home):
    """A complete Holdfast in this process: the store, a worker, and every operation.

    `model` is a name (`demo`, `openai/NAME`, …) or an object with the interface of `Model`. With `work=False` this
    process runs no sessions: it reads them, sends messages and answers, and another process on the same database runs
    the turns.
    """

    def __init__(
        self,
        *,
        database: str | Path | None = None,
        model: str | Model | None = None,
        tools: Iterable[Tool] = (),
        built_in_tools: bool = True,
        instructions: str = INSTRUCTIONS,
        config: Config | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        work: bool = True,
        role: Role = "program",
    ) -> None:
        self._role = role
        self._environ = os.environ if environ is None else environ
        self.config = config or load(_options(database, model), self._environ)
        self._given_model = None if isinstance(model, str) else model
        self._registry = Registry((*(BUILT_IN if built_in_tools else ()), *tools))
        self._instructions = instructions
        self._clock = clock or SystemClock()
        self._work = work
        self._models: SessionModels | None = None
        self._credentials: Credentials | None = None
        self._commands: Commands | None = None
        self._isolation = isolation_of(self.config, self._environ, role=role)
        self._user_directories = UserDirectories(self.config.user_directories)
        self._keeper: TaskKeeper | None = None
        self._tasks: TaskOperations | None = None
        self._webhooks: WebhookOperations | None = None
        self._deliverer: Deliverer | None = None
        self._shell: Shell | None = None
        self._node = self.config.node or platform.node() or "localhost"
        self.observer = Observer(
            self._clock,
            Figures(tools=self._registry.names(), models=(self.config.model,)),
            records_content=self.config.trace_content == "on",
        )
        """Metrics of this process, and spans if an OpenTelemetry provider is configured."""
        self._live: Live = LocalLive()
        self._redis: RedisLive | None = None
        self._store: Store | None = None
        self._worker: Worker | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._files: Files | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._failure: StoreUnavailable | None = None
        self._has_failed = asyncio.Event()
        self._operations: Operations | None = None

    async def __aenter__(self) -> Self:
        if self._work and self._given_model is None:
            self.models.check_default()
        if self._work:
            await self._isolation.check()
        for warning in exposures(self.config):
            log.warning("%s", warning)
        redis_live = redis_live_of(self.config)
        sealer = self._sealer()
        store: Store = await self._open_store(sealer.name if sealer is not None else "")
        self._store = store
        if redis_live is not None:
            await self._use_redis(redis_live, store)
        redaction = Redaction(self._secrets())
        self._credentials = Credentials(store, sealer=sealer, wake=self._live.announce, learned=redaction.learn)
        try:
            self._shell = shell = await self._new_shell(store, redaction)
        except BaseException:
            await self.close()
            raise
        self._files = self._new_files(store)
        self._operations = Operations(
            store=store,
            live=self._live,
            clock=self._clock,
            bounds=self.config.bounds,
            node=self._node,
            # All processes on one SQLite database share a machine, and so its files.
            host=self._node if self.config.is_postgres else None,
            shared_directories=self.config.shared_directories,
            producer=f"holdfast/{__version__}",
            find_window=self._window,
            actor=local_actor(self.config, self._role),
            find_price=self._price,
        )
        self._worker = self._new_worker(store, shell)
        secrets = WebhookSecrets(sealer)
        self._webhooks = self._new_webhooks(store, secrets)
        if self._work:
            await self._worker.__aenter__()
            await self._keep_tasks(shell)
            await self._deliver_webhooks(store, secrets)
            await self._keep_files(self._files)
        else:
            self._hearing = asyncio.create_task(self._hear_others(store))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, grace_seconds: float = 0) -> None:
        """Release all sessions and close the store. Unfinished turns continue in the next process that opens it."""
        if self._store is None:
            return
        if self._worker is not None and self._work:
            await self._worker.stop(grace_seconds=grace_seconds)
        if self._keeper is not None:
            await self._keeper.stop()
        if self._deliverer is not None:
            await self._deliverer.stop(grace_seconds=grace_seconds)
        for task in (self._hearing, self._sweeping):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._redis is not None:
            await self._redis.close()
        store, self._store = self._store, None
        await store.close()
        if self._commands is not None:
            await self._commands.close()
        if self._models is not None:
            await self._models.close()

    async def until_failed(self) -> StoreUnavailable:
        """Wait until this runtime has failed, and return the error, which every later call raises too. Its sessions
        are free for other processes. A program that embeds the runtime decides itself whether to exit."""
        await self._has_failed.wait()
        assert self._failure is not None
        return self._failure

    async def _store_died(self, error: StoreUnavailable) -> None:
        """Stop all work of this process, and send readers to the store, which raises the error to them."""
        self._failure = error
        self._has_failed.set()
        if self._worker is not None:
            await self._worker.stop(grace_seconds=0)
        if self._keeper is not None:
            await self._keeper.stop()
        if self._deliverer is not None:
            await self._deliverer.stop()
        self._live.others_wrote()

    @property
    def operations(self) -> Operations:
        if self._operations is None:
            raise RuntimeError("Enter the runtime first: async with Runtime() as runtime")
        return self._operations

    @property
    def task_operations(self) -> TaskOperations:
        """Operations on the commands of all sessions: list, read, wait, kill."""
        if self._tasks is None:
            raise RuntimeError("Enter the runtime first: async with Runtime() as runtime")
        return self._tasks

    @property
    def webhook_operations(self) -> WebhookOperations:
        """Operations on the webhooks of all owners."""
        if self._webhooks is None:
            raise RuntimeError("Enter the runtime first: async with Runtime() as runtime")
        return self._webhooks

    @property
    def webhooks(self) -> OwnWebhooks:
        """The owner's webhooks, which get the events of all sessions."""
        return OwnWebhooks(self.webhook_operations, self.owner)

    @property
    def file_operations(self) -> FileOperations:
        """Operations on the files of all owners: add, list, read, keep, delete."""
        if self._files is None:
            raise RuntimeError("Enter the runtime first: async with Runtime() as runtime")
        return FileOperations(self.store, self._files)

    @property
    def shell(self) -> Shell:
        """Starts commands, with their limits and their sandbox."""
        if self._shell is None:
            raise RuntimeError("Enter the runtime first: async with Runtime() as runtime")
        return self._shell

    @property
    def store(self) -> Store:
        return self.operations.store

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("Enter the runtime first: async with Runtime() as runtime")
        return self._worker

    @property
    def owner(self) -> Owner:
        return Owner(self.config.owner)

    @property
    def instructions(self) -> str:
        return self._instructions

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The tools that sessions of this runtime may choose, in the order in which models are offered them."""
        names = (spec.name for spec in self._registry.offered(None, ()))
        return tuple(name for name in names if self._registry.get(name) not in (recall, read_attached_file))

    @property
    def default_model(self) -> str:
        return self._given_model.name if self._given_model else self.config.model

    async def identity(self) -> IdentityView:
        usage = await usage_view(self.store, self.owner)
        return IdentityView(owner=self.owner, role="admin", name=self.owner, key_id="", usage=usage)

    async def session(
        self,
        session_id: str | None = None,
        *,
        model: str | None = None,
        title: str | None = None,
        system_message: str | None = None,
        working_directory: str | None = None,
        tools: Sequence[str] | None = None,
        client_tools: Sequence[ClientTool] = (),
        allow: Sequence[str] = (),
        dry_run: bool = False,
        metadata: Mapping[str, str] | None = None,
        provider: OwnProvider | None = None,
    ) -> Session:
        wanted = SessionOptions(
            model=model,
            title=title,
            system_message=system_message,
            working_directory=working_directory,
            tools=tuple(tools) if tools is not None else None,
            client_tools=tuple(client_tools),
            allow=tuple(allow),
            dry_run=dry_run,
            metadata=dict(metadata or {}),
            settings=SettingsChanged(provider=provider_given(provider)) if provider is not None else None,
        )
        session = await self.create(wanted, session_id)
        if provider is not None and (secrets := secrets_given(provider)) is not None:
            await self.credentials.put(session.key, secrets)
        return session

    async def create(self, wanted: SessionOptions, session_id: str | None = None) -> Session:
        """The same with all options, including those that only surfaces use."""
        if wanted.model is None and provider_in(wanted.settings) is None:
            wanted = msgspec.structs.replace(wanted, model=self.default_model)
        if wanted.tools is None:
            own = tuple(name for name in self.tool_names if self._registry.get(name) not in COPILOT_SHELL)
            wanted = msgspec.structs.replace(wanted, tools=own)
        made = await self.operations.create(
            self.owner, wanted, SessionId(session_id) if session_id is not None else None
        )
        return self.open(made)

    def open(self, session_id: str, *, answered_by: str = "") -> Session:
        """The session with this id, which must exist: this is not checked. `answered_by` is the name that answers are
        recorded under."""
        key = Key(self.owner, SessionId(session_id))
        return Session(self.operations, self.task_operations, key, clock=self._clock, answered_by=answered_by)

    async def sessions(self, *, text: str = "") -> AsyncIterator[SessionView]:
        after: str | None = None
        while True:
            page = await self.operations.sessions(self.owner, limit=PAGE, after=after, text=text)
            if page.unsearched:
                continue  # Each search indexes a part of what is left.
            for row in page.rows:
                yield session_view(row)
            after = page.next
            if after is None:
                return

    async def tasks(self) -> tuple[TaskView, ...]:
        rows = await self.task_operations.of_owner(self.owner)
        now = self._clock.now_ms()
        return tuple(task_view(self.task_operations, row, now=now) for row in rows)

    async def permissions(self) -> tuple[Permission, ...]:
        return await self.operations.permissions(self.owner)

    async def revoke_permission(self, permission_id: str) -> Permission:
        return await self.operations.revoke_permission(self.owner, permission_id)

    async def upload(
        self,
        source: Path | bytes,
        *,
        name: str = "",
        media_type: str = "",
        file_id: str | None = None,
        keep: bool = False,
    ) -> FileView:
        row = await self.file_operations.add(
            self.owner,
            name or (source.name if isinstance(source, Path) else ""),
            source_pieces(source),
            media_type=media_type,
            file_id=file_id,
            is_kept=keep,
        )
        return file_view(row)

    async def files(self, *, session_id: str | None = None) -> AsyncIterator[FileView]:
        after: str | None = None
        while True:
            page = await self.file_operations.page(self.owner, limit=PAGE, after=after, session=session_id)
            for row in page.rows:
                yield file_view(row)
            after = page.next
            if after is None:
                return

    async def file(self, file_id: str) -> FileView:
        return file_view(await self.file_operations.find(self.owner, file_id))

    async def read_file(self, file_id: str) -> AsyncGenerator[bytes, None]:
        async for piece in self.file_operations.read(await self.file_operations.find(self.owner, file_id)):
            yield piece

    async def keep_file(self, file_id: str, *, kept: bool = True) -> FileView:
        return file_view(await self.file_operations.keep(self.owner, file_id, is_kept=kept))

    async def delete_file(self, file_id: str) -> None:
        await self.file_operations.delete(self.owner, file_id)

    async def import_session(self, document: bytes) -> Session:
        return self.open(await self.operations.import_session(self.owner, document))

    async def _open_store(self, secret_key: str) -> Store:
        config = self.config
        node, tools, limits = self._node, self._registry.names(), turn_limits(config)
        about = self._about()
        if not config.is_postgres:
            return await SqliteStore.open(
                config.database_path,
                node=node,
                tools=tools,
                secret_key=secret_key,
                clock=self._clock,
                limits=limits,
                about=about,
                on_writer_failure=self._store_died,
            )
        try:
            from holdfast.store.postgres.store import PostgresStore  # deferred: an optional package
        except ImportError:
            raise StoreUnusable("store_needs_extra", NEEDS_ASYNCPG) from None
        url = config.database_url.reveal() if config.database_url is not None else config.database
        direct = config.database_direct
        return await PostgresStore.open(
            url,
            node=node,
            tools=tools,
            secret_key=secret_key,
            clock=self._clock,
            limits=limits,
            about=about,
            on_writer_failure=self._store_died,
            is_pooled=config.database_pooled == "on" or direct is not None,
            direct_url=direct.reveal() if direct is not None else None,
        )

    def _about(self) -> ProcessDescription:
        return ProcessDescription(
            role=self._role,
            version=__version__,
            started_at=self._clock.now_ms(),
            max_sessions=self.config.max_sessions_per_process if self._work else 0,
        )

    async def _hear_others(self, store: Store) -> None:
        """Without a worker here, other processes run the sessions: tell readers of their commits."""
        async for _ in store.changes(wanted=self._live.listening):
            self._live.others_wrote()

    async def _new_shell(self, store: Store, redaction: Redaction) -> Shell:
        config = self.config
        commands = Commands(
            await _commands_folder_of(config, store),
            settings=SupervisorSettings(retention_seconds=config.task_retention_seconds),
            environment=self._environ,
        )
        self._commands = commands
        desk = TaskDesk(store, commands, self._live, self._clock, host=await commands.folder_id(), redaction=redaction)
        self._tasks = TaskOperations(store, self._live, desk)
        return Shell(
            commands,
            desk,
            isolation=self._isolation,
            folders_of_owners=self._user_directories.of_all_owners(),
            limits=Limits(
                seconds=config.command_seconds,
                output_bytes=config.command_output_bytes,
                memory_bytes=config.command_memory_bytes,
                processes=config.command_processes,
                file_bytes=config.command_file_bytes,
            ),
            environment={name: self._environ[name] for name in config.command_environment if name in self._environ},
        )

    async def _keep_tasks(self, shell: Shell) -> None:
        care = KeeperTimings(
            stall_after_seconds=self.config.stall_after_seconds,
            lost_after_seconds=self.config.task_lost_after_seconds,
            retention_seconds=self.config.task_retention_seconds,
        )
        keeper = TaskKeeper(self.store, shell.commands, shell.desk, self._live, self._clock, care)
        shell.look = keeper.look
        self._keeper = await keeper.__aenter__()

    def _new_webhooks(self, store: Store, secrets: WebhookSecrets) -> WebhookOperations:
        return WebhookOperations(
            store,
            self._clock,
            secrets=secrets,
            rules=ReceiverRules(self.config.webhook_hosts),
            limit=self.config.max_webhooks_per_owner or None,
            is_on=self.config.webhooks == "on",
        )

    async def _deliver_webhooks(self, store: Store, secrets: WebhookSecrets) -> None:
        if self.config.webhooks == "off":
            return
        deliverer = Deliverer(store, self._clock, self._receivers, secrets, agent=f"holdfast/{__version__}")
        self._deliverer = await deliverer.__aenter__()

    def _receivers(self) -> Receivers:
        from holdfast.webhooks.receivers import HttpReceivers  # deferred: importing HTTP is slow

        return HttpReceivers(ReceiverRules(self.config.webhook_hosts))

    def _new_files(self, store: Store) -> Files:
        config = self.config
        folder = config.files_folder
        return Files(
            store,
            lambda: _objects_of(config),
            self._clock,
            spool_folder=config.data_dir / "uploads" if folder is None else folder,
            limits=FileLimits(max_bytes=config.max_file_bytes, unused_seconds=config.file_unused_seconds),
        )

    async def _keep_files(self, files: Files) -> None:
        """Sweep files from now on. A process that serves others says at once if it can't reach them."""
        self._sweeping = asyncio.create_task(files.keep_swept(every_seconds=SWEEP_SECONDS), name="files: sweep")
        if self._role not in SERVING:
            return
        try:
            await files.check()
        except FilesUnavailable as error:
            log.error("%s Until then, this process can neither store nor read files.", error.message)
        files.sweep_soon()

    def _secrets(self) -> Iterable[str]:
        """Values that are removed from tool results."""
        for name, value in self._environ.items():
            if is_secret(name):
                yield value
        given = (
            self.config.model_api_key,
            self.config.secret_key,
            self.config.billing_secret,
            self.config.credit_secret,
        )
        for secret in given:
            if secret is not None:
                yield secret.reveal()
        for url in (self.config.database_url, self.config.database_direct):
            if url is not None and (password := urlsplit(url.reveal()).password):
                yield unquote(password)
        if self.config.redis is not None and (password := urlsplit(self.config.redis.reveal()).password):
            yield unquote(password)

    def _new_worker(self, store: Store, shell: Shell) -> Worker:
        return Worker(
            store=store,
            live=self._live,
            clock=self._clock,
            bounds=self.config.bounds,
            pace=Pace(
                lease_ttl_seconds=self.config.lease_ttl_seconds,
                renew_every_seconds=self.config.renew_every_seconds,
                lease_margin_seconds=self.config.lease_margin_seconds,
                claim_every_seconds=self.config.claim_every_seconds,
                listen_every_seconds=self.config.tails_every_seconds,
                max_sessions=self.config.max_sessions_per_process,
            ),
            node=self._node,
            registry=self._registry,
            models=self._model,
            credentials=self.credentials,
            shell=shell,
            files=self._files,
            instructions=self._instructions,
            compaction_model=self.config.model_compaction,
            fallback_model=self.config.model_fallback,
            observer=self.observer,
            may_work_in=self._user_directories.contains,
        )

    async def _model(self, choice: ModelChoice) -> Model:
        """The model that a session chose. The model object that this runtime was given is found by its name."""
        given = self._given_model
        if given is not None and choice.provider is None and choice.name in (None, given.name):
            return given
        return await self.models.model(choice, self.credentials)

    async def _window(self, choice: ModelChoice) -> int | None:
        """The window of a session's model; the default for a model that this process can't use. A session's own
        provider is not opened for it: that takes its secrets."""
        if choice.provider is not None:
            return DEFAULT_WINDOW
        try:
            return (await self._model(choice)).info.window
        except ModelNotUsable:
            return DEFAULT_WINDOW

    async def _price(self, model: str) -> "TokenPrice | None":
        """The present price of a model; None if nobody knows it, or this process can't use the model."""
        given = self._given_model
        if given is not None and given.name == model:
            return given.info.price
        try:
            return self.models.info(model).price
        except ModelNotUsable:
            return None

    @property
    def models(self) -> "SessionModels":
        """Opens models by name, and those of the providers that sessions bring."""
        if self._models is None:
            from holdfast.models.session_models import SessionModels  # deferred: importing HTTP is slow

            key = self.config.model_api_key
            self._models = SessionModels(
                default=self.config.model,
                base_url=self.config.model_base_url,
                api_key=key.reveal() if key else None,
                environ=self._environ,
                settings=model_settings(self.config),
                fallback=self.config.model_fallback,
            )
        return self._models

    @property
    def credentials(self) -> Credentials:
        """Secrets that clients gave to their sessions."""
        if self._credentials is None:
            raise RuntimeError("Enter the runtime first: async with Runtime() as runtime")
        return self._credentials

    @property
    def redis_state(self) -> str | None:
        """The state of the connection to Redis, in words; None if Redis is neither configured nor useful here."""
        if self._redis is None:
            return "not set, hints through the database" if wants_redis(self.config) else None
        return self._redis.describe()

    def redis_figures(self) -> dict[str, tuple[str, float]]:
        """Metrics of the hints through Redis: name, description and value."""
        if self._redis is None:
            return {}
        return {
            "holdfast_redis_up": ("Whether hints go through Redis.", float(self._redis.is_up)),
            "holdfast_redis_sent_total": ("Messages that were sent to other processes.", self._redis.sent),
            "holdfast_redis_heard_total": ("Messages of other processes that were heard.", self._redis.heard),
            "holdfast_redis_ignored_total": ("Messages that were not understood.", self._redis.ignored),
        }

    async def redis_answers(self) -> bool:
        """Whether Redis is configured and reachable. Waits until that is known."""
        return self._redis is not None and await self._redis.answers()

    async def _use_redis(self, redis_live: "type[RedisLive]", store: Store) -> None:
        assert self.config.redis is not None
        try:
            namespace = self.config.redis_prefix or await store.identity()
            self._redis = await redis_live(self.config.redis.reveal(), namespace=namespace).__aenter__()
        except BaseException:
            await self.close()
            raise
        self._live = self._redis

    def _sealer(self) -> "Sealer | None":
        if self.config.secret_key is None:
            return None
        try:
            from holdfast.models.sealer import Sealer  # deferred: an optional package
        except ImportError:
            raise ConfigError(
                "HOLDFAST_SECRET_KEY",
                "is set, but the package `cryptography` is not installed",
                allowed="with it (pip install 'holdfast[secrets]'), or not set",
            ) from None
        return Sealer(self.config.secret_key.reveal())


def _commands_folder(database: Path) -> Path:
    """The folder of commands beside the database, shared by all processes on it."""
    database = database.resolve()
    return database.with_name(database.name + ".commands")


async def _commands_folder_of(config: Config, store: Store) -> Path:
    """The folder of commands; with PostgreSQL, the processes of one machine with the same data directory share it."""
    if not config.is_postgres:
        return _commands_folder(config.database_path)
    make_private_folder(config.data_dir)
    return config.data_dir / f"{await store.identity()}.commands"


def _objects_of(config: Config) -> Objects:
    """The file store."""
    folder = config.files_folder
    if folder is not None:
        return ObjectFolder(folder)
    try:
        from holdfast.files.bucket import Bucket  # deferred: an optional package
    except ImportError:
        raise FilesUnavailable(NEEDS_OBSTORE) from None
    return Bucket(config.files)


def exposures(config: Config) -> list[str]:
    """Warnings about files with sessions and keys that other users of this machine can read."""
    paths = [] if config.is_postgres else database_files(config.database_path)
    if config.is_postgres or config.database_path.parent == config.data_dir:
        paths = [config.data_dir, *paths]
    try:
        faults = [
            (path, fault)
            for path in paths
            if path.exists() and (fault := access_fault(path)) is not None and fault.is_exposed
        ]
    except OSError:
        return []  # A file that can't be inspected can't be opened either; opening it reports the reason.
    return [
        f"WARNING: {path} is not for you alone: {fault.what}. Sessions and keys are in there. Run: {fault.command}"
        for path, fault in faults
    ]


def isolation_of(config: Config, environ: Mapping[str, str], *, role: Role = "program") -> Isolation:
    """The sandbox of commands. It hides whole folders: in the database's folder, files appear and disappear."""
    if config.refuses_commands and role in SERVING:
        return NoCommands()
    if config.sandbox == "none":
        return Unconfined()
    hidden: tuple[Path, ...] = (config.data_dir,)
    if not config.is_postgres:
        database = config.database_path
        hidden += (database.parent, database.resolve().parent, _commands_folder(database))
    if config.files_folder is not None:
        hidden += (config.files_folder,)
    return Bubblewrap(network=config.sandbox_network == "on", hidden=hidden, search_path=environ.get("PATH"))


def redis_live_of(config: Config) -> "type[RedisLive] | None":
    """The class for hints through Redis; None if Redis is not configured."""
    if config.redis is None:
        return None
    try:
        from holdfast.live.redis import RedisLive, UrlRefused, check_url  # deferred: an optional package
    except ImportError:
        raise ConfigError(
            "HOLDFAST_REDIS",
            "is set, but the package `redis` is not installed",
            allowed="with it (pip install 'holdfast[cluster]'), or not set",
        ) from None
    try:
        check_url(config.redis.reveal())
    except UrlRefused as error:
        allowed = "a URL that redis-py accepts, such as redis://HOST:6379/0 or rediss://HOST:6379?ssl_ca_certs=FILE"
        raise ConfigError("HOLDFAST_REDIS", f"can't be used: {error}", allowed=allowed) from None
    return RedisLive


def wants_redis(config: Config) -> bool:
    """Whether Redis would help: several machines may share the database, and hints go through it alone."""
    return config.redis is None and config.is_postgres


def turn_limits(config: Config) -> TurnLimits:
    """How much of one owner's work is done at a time. Where one person is served, at a terminal or by the token of a
    start, there is nobody to be fair to."""
    return TurnLimits(
        running=config.max_running_turns_per_owner or None,
        in_flight=config.max_turns_in_flight_per_owner or None,
        sessions=config.max_sessions_per_owner or None,
        files=config.max_files_per_owner or None,
        file_bytes=config.max_file_bytes_per_owner or None,
        stored_bytes=config.max_bytes_per_owner or None,
        unlimited=frozenset() if config.auth == "keys" else frozenset({Owner(config.owner)}),
        spend=SpendLimits(
            day=config.budget_day,
            week=config.budget_week,
            session=config.budget_session,
            turn=config.budget_turn,
            tree=config.budget_tree,
            tiers=config.budget_tiers,
        ),
    )


def local_actor(config: Config, role: Role) -> Actor:
    """This process as the audit log names it: by the user of the operating system that it runs as."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    kind: ActorKind = "operator" if role in ("command", "serve") else "program"
    return Actor(kind=kind, id=name, owner=config.owner, role="admin")


def model_settings(config: Config) -> "ModelSettings":
    """How models are opened, beside their addresses and keys."""
    from holdfast.models.call_wait import ModelPatience
    from holdfast.models.catalogue import ModelSettings  # deferred: importing HTTP is slow

    return ModelSettings(
        wire=config.model_wire,
        stated=config.models,
        patience=ModelPatience(
            first_byte_seconds=config.model_first_byte_seconds, silence_seconds=config.model_silence_seconds
        ),
    )


def _options(database: str | Path | None, model: str | Model | None) -> dict[str, object]:
    options: dict[str, object] = {}
    if database is not None:
        text = str(database)
        options["database"] = text if "://" in text else f"sqlite:///{text}"
    if isinstance(model, str):
        options["model"] = model
    return options
