"""Hints through a real Valkey: who receives them, how many messages they take, and what happens when it fails."""

import asyncio
import contextlib
import itertools
import logging
import re
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.events.ids import Key, MessageId, Owner, Position, SessionId, ToolCallId
from holdfast.live import redis
from holdfast.live.live import Changed, Delta, Grown, Hint, Lost, Progress, Subscription
from holdfast.live.redis import RedisLive, UrlRefused
from holdfast.live.wire import encode_hints
from tests.live.patience import PATIENCE_SECONDS, patience, until
from tests.live.tls import self_signed, tls_in_front_of
from tests.valkey_server import Valkey, valkey_server

pytestmark = pytest.mark.anyio

KEY = Key(Owner("me"), SessionId("s"))
_names = itertools.count(1)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is slow because the machine is busy does not count as down: these tests expect each hint."""
    monkeypatch.setattr(redis, "ANSWER_SECONDS", PATIENCE_SECONDS)


def grown(number: int) -> Grown:
    delta = Delta(message_id=MessageId("m"), block=0, kind="text", offset=number, text="x")
    return Grown(Position(1), (0, number), (delta,))


@contextlib.asynccontextmanager
async def pair(server: Valkey) -> AsyncIterator[tuple[RedisLive, RedisLive]]:
    """Two live layers of one database, which Redis sees as two processes."""
    name = f"pair{next(_names)}"
    async with RedisLive(server.url, namespace=name) as here, RedisLive(server.url, namespace=name) as there:
        await until(lambda: here.is_up and there.is_up)
        yield here, there


async def next_of(subscription: Subscription) -> Hint:
    async with patience():
        return await subscription.next()


async def followed(live: RedisLive, key: Key = KEY) -> Subscription:
    """A subscription that receives every hint from now on."""
    subscription = live.subscribe(key)
    assert await next_of(subscription) == Lost()
    return subscription


class WakeUps(list[tuple[Key | None, int | None]]):
    def __init__(self, live: RedisLive) -> None:
        live.on_change(lambda key, tail: self.append((key, tail)))


# Delivery


async def test_new_subscriber_gets_lost_once_its_channel_is_subscribed(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there):
        first = await followed(there)
        here.publish(KEY, Changed(tail=1))
        assert await next_of(first) == Changed(tail=1)
        second = there.subscribe(KEY)
        here.publish(KEY, Changed(tail=2))
        assert await next_of(second) == Changed(tail=2), (
            "a second subscriber misses nothing: the channel is subscribed already"
        )


async def test_hints_reach_only_the_subscribers_of_their_session(valkey: Valkey) -> None:
    other = Key(Owner("me"), SessionId("other"))
    async with pair(valkey) as (here, there):
        mine, others = await followed(there), await followed(there, other)
        here.publish(KEY, grown(0))
        here.publish(other, Changed(tail=9))
        assert await next_of(mine) == grown(0)
        assert await next_of(others) == Changed(tail=9)


async def test_own_hints_arrive_at_once_and_only_once(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there):
        mine, far = await followed(here), await followed(there)
        seen: list[Hint] = []
        here.watch(lambda _, hint: seen.append(hint))
        there.watch(lambda _, hint: seen.append(hint))
        here.publish(KEY, grown(0))
        assert await next_of(mine) == grown(0)
        assert here.sent == 0, "the hint did not go through Redis"
        assert await next_of(far) == grown(0)
        there.publish(KEY, Changed(tail=5))
        assert await next_of(mine) == Changed(tail=5), "and not our own hint again"
        assert seen == [grown(0), Changed(tail=5)], "a watcher sees only the hints that its own process publishes"


async def test_wake_ups_reach_every_process(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there):
        near, far = WakeUps(here), WakeUps(there)
        here.publish(KEY, Changed(tail=4))
        here.publish(KEY, Changed(promoted=True))
        assert near == [(KEY, 4)]
        await until(lambda: (KEY, 4) in far)
        here.publish(KEY, Changed())
        await until(lambda: (KEY, None) in far)
        assert far.count((KEY, 4)) == 1


async def test_databases_that_share_a_redis_are_isolated(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there), pair(valkey) as (stranger, _):
        mine, woken = await followed(there), WakeUps(there)
        stranger.publish(KEY, grown(0))
        stranger.publish(KEY, Changed(tail=99))
        await until(lambda: stranger.sent >= 2)
        here.publish(KEY, Changed(tail=1))
        assert await next_of(mine) == Changed(tail=1)
        assert woken == [(KEY, 1)]


async def test_channel_is_unsubscribed_with_its_last_subscriber(valkey: Valkey) -> None:
    async with pair(valkey) as (_, there):
        first, second = await followed(there), there.subscribe(KEY)
        channel = there._channel(KEY)
        assert b":1\r\n" in valkey.ask("PUBSUB", "NUMSUB", channel)
        first.close()
        first.close()
        assert there.listening()
        second.close()
        assert not there.listening()
        await until(lambda: b":0\r\n" in valkey.ask("PUBSUB", "NUMSUB", channel))
        again = await followed(there)
        again.close()


async def test_hints_of_another_process_arrive(valkey: Valkey, tmp_path: Path) -> None:
    """The publisher is a separate operating system process."""
    name = f"two{next(_names)}"
    child = await asyncio.create_subprocess_exec(
        sys.executable, Path(__file__).with_name("publisher.py"), valkey.url, name, stdin=PIPE, stdout=PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with RedisLive(valkey.url, namespace=name) as live, patience():
            subscription, woken = await followed(live), WakeUps(live)
            assert await child.stdout.readline() == b"up\n"
            child.stdin.write(b"publish\n")
            text = ""
            while len(text) < 1_000:
                hint = await subscription.next()
                assert isinstance(hint, Grown)
                assert hint.follows == (0, len(text))
                text += "".join(delta.text for delta in hint.deltas)
            assert await subscription.next() == Changed(tail=7)
            await until(lambda: (KEY, 7) in woken)
            child.stdin.close()
            assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


# Number of messages


async def test_hints_of_one_tick_are_one_message_for_each_session(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there):
        mine = await followed(there)
        for number in range(100):
            here.publish(KEY, grown(number))
        hint = await next_of(mine)
        assert isinstance(hint, Grown)
        assert [delta.text for delta in hint.deltas] == ["x" * 100]
        await until(lambda: here.sent > 0)
        assert (here.sent, there.heard) == (1, 1)


async def test_too_many_hints_send_readers_to_the_store(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there):
        mine = await followed(there)
        for number in range(300):
            here.publish(KEY, Progress(ToolCallId(str(number)), "x"))
        assert await next_of(mine) == Lost()
        assert there.heard == 1


# Foreign messages


async def test_garbage_foreign_and_future_messages_are_ignored_with_one_log_line_each(
    valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(valkey) as (here, there):
        mine, channel = await followed(there), there._channel(KEY)
        other = Key(Owner("me"), SessionId("other"))
        for _ in range(3):
            valkey.ask("PUBLISH", channel, b"\xff\x00 not msgpack")
            valkey.ask("PUBLISH", channel, b"\x93\x09\xa2me\xc0")
            valkey.ask("PUBLISH", there._all, encode_hints("me", KEY, [Lost()]))
            valkey.ask("PUBLISH", channel, encode_hints("me", other, [Lost()]))
        await until(lambda: there.ignored >= 9)
        here.publish(KEY, Changed(tail=1))
        assert await next_of(mine) == Changed(tail=1)
    lines = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert len(lines) == 4, "three here, and one there, which receives only the channel of all processes"
    assert sum("of version 9" in line for line in lines) == 1


# Failures of Redis


@pytest.mark.usefixtures("impatient")
async def test_subscribers_read_the_store_when_redis_dies_and_when_it_returns(
    own_valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with pair(own_valkey) as (here, there):
        mine, woken = await followed(there), WakeUps(there)
        own_valkey.kill()
        assert await next_of(mine) == Lost()
        await until(lambda: not here.is_up and not there.is_up)
        assert here.describe() == "down, hints by polling"
        woken.clear()
        sent = here.sent
        here.publish(KEY, grown(0))
        here.publish(KEY, Changed(tail=3))
        own_valkey.start()
        await until(lambda: here.is_up and there.is_up)
        assert here.describe() == "up"
        assert await next_of(mine) == Lost()
        await until(lambda: bool(woken))
        await until(lambda: here.sent > sent)  # Until then the publisher only reports that hints were lost.
        heard = there.heard
        here.publish(KEY, grown(1))
        while (hint := await next_of(mine)) == Lost():
            pass  # The publisher reports the hints that it dropped as well.
        assert hint == grown(1)
        assert there.heard > heard
    assert len([line for line in caplog.messages if "can't be used" in line]) == 2
    assert len([line for line in caplog.messages if "is back" in line]) == 2


@pytest.mark.usefixtures("impatient")
async def test_frozen_redis_is_detected_and_delays_no_publisher(
    own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "ANSWER_SECONDS", 0.5)
    async with pair(own_valkey) as (here, there):
        mine, local = await followed(there), await followed(here)
        own_valkey.pause()
        for number in range(10_000):
            here.publish(KEY, grown(number))
        assert isinstance(await next_of(local), Grown | Lost)
        await until(lambda: not here.is_up and not there.is_up)
        own_valkey.resume()
        await until(lambda: here.is_up and there.is_up)
        assert await next_of(mine) == Lost()


async def test_hint_lost_on_a_broken_connection_becomes_lost(own_valkey: Valkey) -> None:
    """Only the publisher's connection breaks, so the receivers can't notice the loss themselves."""
    async with pair(own_valkey) as (here, there):
        mine, woken = await followed(there), WakeUps(there)
        assert own_valkey.ask("CLIENT", "KILL", "TYPE", "normal").startswith(b":")
        here.publish(KEY, grown(0))
        here.publish(KEY, Changed(tail=3))
        assert await next_of(mine) == Lost()
        await until(lambda: (KEY, 3) in woken)
        assert there.is_up


@pytest.mark.usefixtures("impatient")
async def test_idle_redis_connection_stays_up(own_valkey: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    async with pair(own_valkey):
        await until(lambda: pings(own_valkey) > 20)
    assert caplog.messages == []


def pings(server: Valkey) -> int:
    found = re.search(rb"cmdstat_ping:calls=(\d+)", server.ask("INFO", "commandstats"))
    return int(found[1]) if found else 0


async def test_flush_loses_no_hints(own_valkey: Valkey) -> None:
    async with pair(own_valkey) as (here, there):
        mine = await followed(there)
        own_valkey.flush()
        here.publish(KEY, grown(0))
        assert await next_of(mine) == grown(0)
        assert here.is_up
        assert there.is_up


@pytest.mark.usefixtures("impatient")
async def test_unreachable_redis_is_logged_once_and_local_hints_still_arrive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with RedisLive(f"redis://:hush@127.0.0.1:{port}", namespace="x") as live:
        subscription = live.subscribe(KEY)
        live.publish(KEY, grown(0))
        assert await next_of(subscription) == grown(0)
        await until(lambda: bool(caplog.messages))
        assert live.others_wrote(), "subscribers read the store at once"
        assert await next_of(subscription) == Lost()
    assert len(caplog.messages) == 1
    assert "hush" not in caplog.text


@pytest.mark.usefixtures("impatient")
async def test_password_is_used_and_never_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with valkey_server(tmp_path, password="hush-hush") as server:
        async with pair(server) as (here, there):
            mine = await followed(there)
            here.publish(KEY, grown(0))
            assert await next_of(mine) == grown(0)
        wrong = server.url.replace("hush-hush", "not-the-one")
        async with RedisLive(wrong, namespace="x") as live:
            await until(lambda: bool(caplog.messages))
            assert not live.is_up
        assert "hush" not in RedisLive(server.url, namespace="x")._without_password(OSError("hush-hush was wrong"))
    assert "invalid username-password pair" in caplog.text
    assert "not-the-one" not in caplog.text


@pytest.mark.parametrize("option", ["colour=blue", "socket_timeout=soon", "decode_responses=yes", "protocol=3"])
def test_url_with_an_unusable_option_is_refused_without_repeating_it(option: str) -> None:
    with pytest.raises(UrlRefused) as error:
        RedisLive(f"redis://:hush@there?{option}", namespace="x")
    assert "hush" not in str(error.value)


# The safety net


async def test_subscribers_read_the_store_periodically_while_redis_is_up(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This covers a process that died between a commit and its hint, and a process without Redis."""
    monkeypatch.setattr(redis, "NET_SECONDS", 0.05)
    async with pair(valkey) as (_, there):
        mine = await followed(there)
        for _ in range(10):
            assert not there.others_wrote()
        assert await next_of(mine) == Lost()


async def test_last_hints_are_sent_before_close(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command puts an answer and exits at once."""
    monkeypatch.setattr(redis, "FAREWELL_SECONDS", 30.0)
    name = f"last{next(_names)}"
    async with RedisLive(valkey.url, namespace=name) as there:
        mine, woken = await followed(there), WakeUps(there)
        async with RedisLive(valkey.url, namespace=name) as here:
            here.publish(KEY, Changed(tail=1))
        assert await next_of(mine) == Lost(), "the publisher was not connected yet, so it could only report a loss"
        await until(lambda: (KEY, 1) in woken)


# Over TLS


async def test_hints_go_over_tls(valkey: Valkey, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    async with tls_in_front_of(valkey, certificate) as port:
        url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}"
        async with RedisLive(url, namespace="tls") as here, RedisLive(valkey.url, namespace="tls") as there:
            await until(lambda: here.is_up and there.is_up)
            mine, far = await followed(here), await followed(there)
            there.publish(KEY, grown(0))
            assert await next_of(mine) == grown(0)
            here.publish(KEY, Changed(tail=1))
            assert await next_of(far) == grown(0)
            assert await next_of(far) == Changed(tail=1)


@pytest.mark.usefixtures("impatient")
async def test_untrusted_certificate_is_refused(
    valkey: Valkey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        tls_in_front_of(valkey, self_signed(tmp_path)) as port,
        RedisLive(f"rediss://127.0.0.1:{port}", namespace="tls") as live,
    ):
        await until(lambda: bool(caplog.messages))
        assert not live.is_up
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
