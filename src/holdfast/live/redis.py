"""Hints between processes, through Redis or Valkey: what is published here is heard wherever somebody follows.

Nobody ever waits for Redis. What is published goes to this process at once and into a bounded queue for the others;
one message for each session leaves it at most once in a tick. When Redis is away, hints come from the store, as they do
without it; when it is back, whoever follows a session reads on from the store once, and then hears hints again.
"""

import asyncio
import contextlib
import hashlib
import logging
import random
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from holdfast.events.ids import Key, random_id
from holdfast.live.live import Changed, Hint, Listener, Lost, Progress
from holdfast.live.local import LocalLive, LocalSubscription
from holdfast.live.outbox import Batch, Outbox
from holdfast.live.wire import LostAll, NotUnderstood, Told, Woken, decode, hints_of

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.01
"""At most one message for each session in this time: a publish costs more than many tokens do."""

ANSWER_SECONDS: Final = 2.0
"""Redis answers in a millisecond. One that takes so long is as good as away."""

PING_SECONDS: Final = 1.0

NET_SECONDS: Final = 2.0
"""How often who follows a session looks at the store although Redis is there, if another process wrote: for the hint
that a dying process never sent, and for processes that don't know of Redis."""

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
"""How long to wait before Redis is tried again: twice as long each time."""

FAREWELL_SECONDS: Final = 1.0
"""How long the end of a process may be held up by what it has still to tell."""

COMMANDS_AT_ONCE: Final = 500


class UrlRefused(Exception):
    """The URL of Redis has something in it that can't be used. The message does not repeat it."""


class RedisSubscription:
    """One listener here; as long as there is one for its session, this process hears what others tell of it."""

    def __init__(self, local: LocalSubscription, left: Callable[[Key], None]) -> None:
        self._local = local
        self._left = left

    async def next(self) -> Hint:
        return await self._local.next()

    def close(self) -> None:
        self._local.close()
        self._left(self._local.key)


class RedisLive:
    """One per process. `namespace` keeps those who share a Redis but no database apart."""

    def __init__(self, url: str, *, namespace: str) -> None:
        self._pool = _pool(url)
        self._password = str(self._pool.connection_kwargs.get("password") or "")
        self._prefix = f"holdfast:{namespace}"
        self._all = f"{self._prefix}:all".encode()
        self._local = LocalLive()
        self._sender = random_id()
        self._outbox = Outbox()
        self._pending = asyncio.Event()
        self._all_told = asyncio.Event()
        self._all_told.set()
        self._channels: dict[bytes, Key] = {}
        """Where hints are heard, or are to be: the sessions that somebody here follows."""
        self._moved: set[Key] = set()
        """Sessions that somebody began or ceased to follow since Redis was last told."""
        self._moves = asyncio.Event()
        self._settled = asyncio.Event()
        """It is known whether Redis is there."""
        self._is_up = False
        self._was_up: bool | None = None
        self._others_wrote = False
        self._strange: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.sent = 0
        """Messages that were sent to other processes."""
        self.heard = 0
        """Messages of other processes that were understood."""
        self.ignored = 0
        """Messages that were not."""

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._keep_connected()), asyncio.create_task(self._look_now_and_then())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Tell the others what is still to be told, if that is soon done."""
        tasks, self._tasks = self._tasks, []
        if tasks and not self._all_told.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._settled.wait()
                    if self._is_up:
                        await self._all_told.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_up(self) -> bool:
        return self._is_up

    async def answers(self) -> bool:
        """Whether it is there, as soon as that is known."""
        await self._settled.wait()
        return self._is_up

    def describe(self) -> str:
        """How hints travel at the moment, for people."""
        return "up" if self._is_up else "down, hints by polling"

    # What everybody calls

    def publish(self, key: Key, hint: Hint) -> None:
        self._local.publish(key, hint)
        if isinstance(hint, Changed) and not hint.promoted:
            self._outbox.wake(key, hint.tail)
        if self._is_up:
            self._outbox.add(key, hint)
        elif not isinstance(hint, Progress):
            self._outbox.lose(key)
        self._pending.set()
        self._all_told.clear()

    def subscribe(self, key: Key) -> RedisSubscription:
        subscription = RedisSubscription(self._local.subscribe(key), self._moved_at)
        self._moved_at(key)
        return subscription

    def on_change(self, listener: Listener) -> Callable[[], None]:
        return self._local.on_change(listener)

    def watch(self, watcher: Callable[[Key, Hint], None]) -> Callable[[], None]:
        return self._local.watch(watcher)

    def announce(self) -> None:
        self._local.announce()

    def lose_all(self) -> None:
        self._local.lose_all()

    def others_wrote(self) -> bool:
        if not self._is_up:
            return self._local.others_wrote()
        self._others_wrote = True
        return False

    def listening(self) -> bool:
        return self._local.listening()

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(NET_SECONDS)
            if self._others_wrote:
                self._others_wrote = False
                self._local.lose_all()

    # One connection after the other

    async def _keep_connected(self) -> None:
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_SECONDS
        while True:
            started = loop.time()
            try:
                await self._connected()
            except Exception as error:
                self._went_down(error)
            if loop.time() - started > 2 * LONGEST_PAUSE_SECONDS:
                pause = FIRST_PAUSE_SECONDS  # It was there for a while, and is not just letting us in to throw us out.
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _connected(self) -> None:
        """From connecting to the first thing that goes wrong, which is raised."""
        telling, hearing = _connection(self._pool), _connection(self._pool)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await _connect(telling)
                await _connect(hearing)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._hear(hearing, telling, tasks))
        except ExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            for connection in (telling, hearing):
                await connection.disconnect(nowait=True)

    async def _hear(self, hearing: AbstractConnection, telling: AbstractConnection, tasks: asyncio.TaskGroup) -> None:
        self._channels, self._moved = {}, set()
        await hearing.send_command("SUBSCRIBE", self._all)
        tasks.create_task(self._ping(hearing))
        while True:
            async with asyncio.timeout(PING_SECONDS + ANSWER_SECONDS):
                answer = await hearing.read_response()
            match answer:
                case [b"message", bytes(channel), bytes(data)]:
                    self._take(channel, data)
                case [b"subscribe", self._all, *_]:
                    self._came_up()
                    tasks.create_task(self._follow(hearing))
                    tasks.create_task(self._tell(telling))
                case [b"subscribe", bytes(channel), *_] if channel in self._channels:
                    # What was told before this moment was not heard.
                    self._local.offer(self._channels[channel], Lost())
                case _:
                    pass  # It ceased to be followed, or Redis says that it lives.

    async def _ping(self, connection: AbstractConnection) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            await connection.send_command("PING")

    def _came_up(self) -> None:
        if self._was_up is False:
            log.info("Redis is back: hints go through it again")
        self._is_up = self._was_up = True
        self._settled.set()
        self._local.announce()

    def _went_down(self, error: Exception) -> None:
        if self._was_up is not False:
            log.warning("Redis can't be used, hints go by polling until it can: %s", self._without_password(error))
        was_up, self._is_up, self._was_up = self._is_up, False, False
        self._settled.set()
        if was_up:
            self._local.lose_all()

    def _without_password(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}" if str(error) else "it does not answer"
        return text.replace(self._password, "***") if self._password else text

    # Telling

    async def _tell(self, connection: AbstractConnection) -> None:
        while True:
            await self._pending.wait()
            self._pending.clear()
            batch = self._outbox.take()
            next_tick = asyncio.get_running_loop().time() + TICK_SECONDS
            try:
                await self._send(connection, batch)
            except BaseException:
                self._outbox.take_back(batch)
                self._pending.set()
                raise
            if not self._outbox:
                self._all_told.set()
            await asyncio.sleep(next_tick - asyncio.get_running_loop().time())

    async def _send(self, connection: AbstractConnection, batch: Batch) -> None:
        commands = [("PUBLISH", self._all, message) for message in batch.for_all(self._sender)]
        commands += [("PUBLISH", self._channel(key), message) for key, message in batch.for_sessions(self._sender)]
        for start in range(0, len(commands), COMMANDS_AT_ONCE):
            some = commands[start : start + COMMANDS_AT_ONCE]
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.send_packed_command(connection.pack_commands(some))
                for _ in some:
                    await connection.read_response()
            self.sent += len(some)

    # Following

    def _moved_at(self, key: Key) -> None:
        if self._is_up:  # Else all of them are looked at when it is.
            self._moved.add(key)
            self._moves.set()

    async def _follow(self, connection: AbstractConnection) -> None:
        """Hear of the sessions that somebody here follows, and of no others."""
        self._moved.update(self._local.keys())
        while True:
            moved, self._moved = self._moved, set()
            self._moves.clear()
            begun, ceased = list[bytes](), list[bytes]()
            for key in moved:
                channel, is_followed = self._channel(key), self._local.has_subscribers(key)
                if is_followed and channel not in self._channels:
                    self._channels[channel] = key
                    begun.append(channel)
                elif not is_followed and self._channels.pop(channel, None) is not None:
                    ceased.append(channel)
            await self._order(connection, "UNSUBSCRIBE", ceased)
            await self._order(connection, "SUBSCRIBE", begun)
            await self._moves.wait()

    async def _order(self, connection: AbstractConnection, command: str, channels: list[bytes]) -> None:
        for start in range(0, len(channels), COMMANDS_AT_ONCE):
            await connection.send_command(command, *channels[start : start + COMMANDS_AT_ONCE])

    def _channel(self, key: Key) -> bytes:
        """Of a length that does not depend on the names; nobody reads them here who can't read the messages."""
        digest = hashlib.blake2b(f"{len(key.owner)} {key.owner} {key.session}".encode(), digest_size=16)
        return f"{self._prefix}:session:{digest.hexdigest()}".encode()

    # Hearing

    def _take(self, channel: bytes, data: bytes) -> None:
        """Never raises: whatever is in there, the next message may be ours."""
        try:
            sender, message = decode(data)
            if sender == self._sender:
                return
            self._heed(channel, message)
            self.heard += 1
        except NotUnderstood as error:
            self.ignored += 1
            if error.why not in self._strange and len(self._strange) < 10:
                self._strange.add(error.why)
                log.warning("a message on %s is ignored, and so are others like it: it is %s", self._prefix, error.why)

    def _heed(self, channel: bytes, message: Told | Woken | LostAll) -> None:
        match message:
            case Told(key=key) if self._channels.get(channel) == key:
                for hint in hints_of(message):
                    self._local.offer(key, hint)
            case Woken(inboxes=inboxes) if channel == self._all:
                for key, tail in inboxes:
                    self._local.wake(key, tail)
            case LostAll() if channel == self._all:
                self._local.lose_all()
            case Told() if channel != self._all:
                pass  # Late: it ceased to be followed meanwhile.
            case _:
                raise NotUnderstood("on a channel that is not for it")


def _first(errors: BaseExceptionGroup[Any]) -> Exception:
    """The cause; what it ended along with it says nothing more."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


def check_url(url: str) -> None:
    """Raises `UrlRefused`. Nothing is connected to."""
    _pool(url)


def _pool(url: str) -> ConnectionPool:
    try:
        pool = ConnectionPool.from_url(
            url,
            protocol=2,
            socket_timeout=None,
            socket_connect_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        _connection(pool)
    except (ValueError, TypeError, OSError):
        raise UrlRefused("it has an option that Redis does not know, or a value that is none") from None
    # What a URL says beats what we say, and these two would have us misread every answer.
    if pool.connection_kwargs.get("decode_responses") or pool.connection_kwargs["protocol"] != 2:
        raise UrlRefused("answers must come as bytes, in version 2 of the protocol")
    return pool


def _connection(pool: ConnectionPool) -> AbstractConnection:
    """A new one, which does nothing yet. A pool's own would be shared, and connected again behind our back."""
    made: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]
    return made


async def _connect(connection: AbstractConnection) -> None:
    await connection.connect()  # type: ignore[no-untyped-call]
