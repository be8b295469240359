"""Hints between processes, through Redis or Valkey: each process receives the hints of the sessions it follows.

No caller ever waits for Redis. A published hint reaches this process's subscribers at once and joins a bounded outbox
for the other processes; one message for each session leaves it at most once in a tick. While Redis is down, readers
poll the store, as they do without Redis; when it is back, each subscriber reads the store once and then gets hints
again.
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
from holdfast.live.live import Changed, Hint, Listener, Lost, Progress, WaitStatus
from holdfast.live.local import LocalLive, LocalSubscription
from holdfast.live.outbox import Batch, Outbox
from holdfast.live.wire import LostAll, NotUnderstood, SessionHints, WakeUps, decode, hints_of

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.01
"""At most one message for each session in this time: a publish costs more than many tokens do."""

ANSWER_SECONDS: Final = 2.0
"""The timeout of a command. Redis answers in a millisecond; after this long it counts as down."""

PING_SECONDS: Final = 1.0

NET_SECONDS: Final = 2.0
"""How often subscribers read the store although Redis is up, if another process wrote: a safety net for the hint that
a dying process never sent, and for processes that run without Redis."""

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
"""The backoff before the next connection attempt: it doubles each time, between these two."""

FAREWELL_SECONDS: Final = 1.0
"""How long shutdown waits for the outbox to be sent."""

COMMANDS_AT_ONCE: Final = 500


class UrlRefused(Exception):
    """The URL of Redis can't be used. The message does not repeat the URL, which may hold a password."""


class RedisSubscription:
    """One subscriber of this process. While a session has one, this process receives its hints from Redis."""

    def __init__(self, local: LocalSubscription, on_close: Callable[[Key], None]) -> None:
        self._local = local
        self._on_close = on_close

    async def next(self) -> Hint:
        return await self._local.next()

    def close(self) -> None:
        self._local.close()
        self._on_close(self._local.key)


class RedisLive:
    """The hints of one process, through Redis. `namespace` separates databases that share one Redis."""

    def __init__(self, url: str, *, namespace: str) -> None:
        self._pool = _pool(url)
        self._password = str(self._pool.connection_kwargs.get("password") or "")
        self._prefix = f"holdfast:{namespace}"
        self._all = f"{self._prefix}:all".encode()
        self._local = LocalLive()
        self._sender = random_id()
        self._outbox = Outbox()
        self._pending = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._channels: dict[bytes, Key] = {}
        """The channels that this process is subscribed to, or about to be: the sessions that have subscribers here."""
        self._moved: set[Key] = set()
        """Sessions that gained or lost a subscriber since the last SUBSCRIBE or UNSUBSCRIBE."""
        self._moves = asyncio.Event()
        self._settled = asyncio.Event()
        """Set once the first connection attempt has succeeded or failed."""
        self._is_up = False
        self._was_up: bool | None = None
        self._others_wrote = False
        self._warned_of: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.sent = 0
        """Messages that this process sent to the others."""
        self.heard = 0
        """Messages of other processes that this process decoded."""
        self.ignored = 0
        """Messages that it could not decode."""

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._keep_connected()),
            asyncio.create_task(self._read_store_periodically()),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send the rest of the outbox, for at most `FAREWELL_SECONDS`, and disconnect."""
        tasks, self._tasks = self._tasks, []
        if tasks and not self._all_sent.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._settled.wait()
                    if self._is_up:
                        await self._all_sent.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_up(self) -> bool:
        return self._is_up

    async def answers(self) -> bool:
        """Whether Redis is up, once the first connection attempt is over."""
        await self._settled.wait()
        return self._is_up

    def describe(self) -> str:
        """How hints travel at the moment, for people."""
        return "up" if self._is_up else "down, hints by polling"

    # The seam

    def publish(self, key: Key, hint: Hint) -> None:
        self._local.publish(key, hint)
        if isinstance(hint, Changed) and not hint.promoted:
            self._outbox.wake(key, hint.tail)
        if self._is_up:
            self._outbox.add(key, hint)
        elif not isinstance(hint, Progress | WaitStatus):
            self._outbox.lose(key)
        self._pending.set()
        self._all_sent.clear()

    def subscribe(self, key: Key) -> RedisSubscription:
        subscription = RedisSubscription(self._local.subscribe(key), self._subscribers_moved)
        self._subscribers_moved(key)
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

    async def _read_store_periodically(self) -> None:
        while True:
            await asyncio.sleep(NET_SECONDS)
            if self._others_wrote:
                self._others_wrote = False
                self._local.lose_all()

    # Connections

    async def _keep_connected(self) -> None:
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_SECONDS
        while True:
            started = loop.time()
            try:
                await self._run_connection()
            except Exception as error:
                self._went_down(error)
            if loop.time() - started > 2 * LONGEST_PAUSE_SECONDS:
                pause = FIRST_PAUSE_SECONDS  # The connection was stable: this is not a server that drops us at once.
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _run_connection(self) -> None:
        """Connect, then send and receive until the first error, which is raised."""
        publisher, receiver = _connection(self._pool), _connection(self._pool)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await _connect(publisher)
                await _connect(receiver)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(receiver, publisher, tasks))
        except ExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            for connection in (publisher, receiver):
                await connection.disconnect(nowait=True)

    async def _receive(
        self, receiver: AbstractConnection, publisher: AbstractConnection, tasks: asyncio.TaskGroup
    ) -> None:
        self._channels, self._moved = {}, set()
        await receiver.send_command("SUBSCRIBE", self._all)
        tasks.create_task(self._ping(receiver))
        while True:
            async with asyncio.timeout(PING_SECONDS + ANSWER_SECONDS):
                answer = await receiver.read_response()
            match answer:
                case [b"message", bytes(channel), bytes(data)]:
                    self._take(channel, data)
                case [b"subscribe", self._all, *_]:
                    self._came_up()
                    tasks.create_task(self._follow(receiver))
                    tasks.create_task(self._publish(publisher))
                case [b"subscribe", bytes(channel), *_] if channel in self._channels:
                    # This process missed the hints from before the subscription.
                    self._local.offer(self._channels[channel], Lost())
                case _:
                    pass  # The reply to an UNSUBSCRIBE or to a PING.

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

    # Sending

    async def _publish(self, connection: AbstractConnection) -> None:
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
                self._all_sent.set()
            await asyncio.sleep(next_tick - asyncio.get_running_loop().time())

    async def _send(self, connection: AbstractConnection, batch: Batch) -> None:
        commands = [("PUBLISH", self._all, message) for message in batch.for_all(self._sender)]
        commands += [("PUBLISH", self._channel(key), message) for key, message in batch.for_sessions(self._sender)]
        for start in range(0, len(commands), COMMANDS_AT_ONCE):
            pipeline = commands[start : start + COMMANDS_AT_ONCE]
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.send_packed_command(connection.pack_commands(pipeline))
                for _ in pipeline:
                    await connection.read_response()
            self.sent += len(pipeline)

    # Channels

    def _subscribers_moved(self, key: Key) -> None:
        if self._is_up:  # Otherwise `_follow` looks at all sessions when Redis is back.
            self._moved.add(key)
            self._moves.set()

    async def _follow(self, connection: AbstractConnection) -> None:
        """Keep this process subscribed to the channels of the sessions that have subscribers, and to no others."""
        self._moved.update(self._local.keys())
        while True:
            moved, self._moved = self._moved, set()
            self._moves.clear()
            followed, unfollowed = list[bytes](), list[bytes]()
            for key in moved:
                channel, is_followed = self._channel(key), self._local.has_subscribers(key)
                if is_followed and channel not in self._channels:
                    self._channels[channel] = key
                    followed.append(channel)
                elif not is_followed and self._channels.pop(channel, None) is not None:
                    unfollowed.append(channel)
            await self._send_channels(connection, "UNSUBSCRIBE", unfollowed)
            await self._send_channels(connection, "SUBSCRIBE", followed)
            await self._moves.wait()

    async def _send_channels(self, connection: AbstractConnection, command: str, channels: list[bytes]) -> None:
        for start in range(0, len(channels), COMMANDS_AT_ONCE):
            await connection.send_command(command, *channels[start : start + COMMANDS_AT_ONCE])

    def _channel(self, key: Key) -> bytes:
        """The channel of a session: a digest, so that its length is fixed and it does not reveal the session's name."""
        digest = hashlib.blake2b(f"{len(key.owner)} {key.owner} {key.session}".encode(), digest_size=16)
        return f"{self._prefix}:session:{digest.hexdigest()}".encode()

    # Receiving

    def _take(self, channel: bytes, data: bytes) -> None:
        """Deliver one message. Never raises: a message that can't be decoded must not end the connection."""
        try:
            sender, message = decode(data)
            if sender == self._sender:
                return
            self._deliver(channel, message)
            self.heard += 1
        except NotUnderstood as error:
            self.ignored += 1
            if error.why not in self._warned_of and len(self._warned_of) < 10:
                self._warned_of.add(error.why)
                log.warning("a message on %s is ignored, and so are others like it: it is %s", self._prefix, error.why)

    def _deliver(self, channel: bytes, message: SessionHints | WakeUps | LostAll) -> None:
        match message:
            case SessionHints(key=key) if self._channels.get(channel) == key:
                for hint in hints_of(message):
                    self._local.offer(key, hint)
            case WakeUps(inboxes=inboxes) if channel == self._all:
                for key, tail in inboxes:
                    self._local.wake(key, tail)
            case LostAll() if channel == self._all:
                self._local.lose_all()
            case SessionHints() if channel != self._all:
                pass  # Late: the session has lost its last subscriber meanwhile.
            case _:
                raise NotUnderstood("on a channel that is not for it")


def _first(errors: BaseExceptionGroup[Any]) -> Exception:
    """The first error of the group, which caused the others."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


def check_url(url: str) -> None:
    """Check the URL without connecting. Raises `UrlRefused`."""
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
        raise UrlRefused("it has an option that Redis does not know, or an option with an invalid value") from None
    # Options in the URL override ours, and these two would make us misread every reply.
    if pool.connection_kwargs.get("decode_responses") or pool.connection_kwargs["protocol"] != 2:
        raise UrlRefused("answers must come as bytes, in version 2 of the protocol")
    return pool


def _connection(pool: ConnectionPool) -> AbstractConnection:
    """A new connection, not yet open. One that the pool manages would be shared, and reconnect by itself."""
    connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]
    return connection


async def _connect(connection: AbstractConnection) -> None:
    await connection.connect()  # type: ignore[no-untyped-call]
