"""Hints through a real Valkey: who hears them, how many messages they make, and what becomes of them when it fails."""

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
from holdfast.live.wire import encode_told
from tests.live.tls import self_signed, tls_in_front_of
from tests.live.waiting import patience, until
from tests.valkey_server import Valkey, valkey_server

pytestmark = pytest.mark.anyio

KEY = Key(Owner("me"), SessionId("s"))
_names = itertools.count(1)


def grown(number: int) -> Grown:
    delta = Delta(message_id=MessageId("m"), block=0, kind="text", offset=number, text="x")
    return Grown(Position(1), (0, number), (delta,))


@contextlib.asynccontextmanager
async def pair(server: Valkey) -> AsyncIterator[tuple[RedisLive, RedisLive]]:
    """Two processes of one database, as far as Redis can tell."""
    name = f"pair{next(_names)}"
    async with RedisLive(server.url, namespace=name) as here, RedisLive(server.url, namespace=name) as there:
        await until(lambda: here.is_up and there.is_up)
        yield here, there


async def next_of(subscription: Subscription) -> Hint:
    async with patience():
        return await subscription.next()


async def followed(live: RedisLive, key: Key = KEY) -> Subscription:
    """A subscription that hears everything from now on."""
    subscription = live.subscribe(key)
    assert await next_of(subscription) == Lost()
    return subscription


class Woken(list[tuple[Key | None, int | None]]):
    def __init__(self, live: RedisLive) -> None:
        live.on_change(lambda key, tail: self.append((key, tail)))


# What is heard


async def test_who_subscribes_is_told_to_look_once_nothing_more_can_be_missed(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there):
        first = await followed(there)
        here.publish(KEY, Changed(tail=1))
        assert await next_of(first) == Changed(tail=1)
        second = there.subscribe(KEY)
        here.publish(KEY, Changed(tail=2))
        assert await next_of(second) == Changed(tail=2), "who comes later need not look: all is heard already"


async def test_hints_reach_those_who_follow_the_session_and_nobody_else(valkey: Valkey) -> None:
    other = Key(Owner("me"), SessionId("other"))
    async with pair(valkey) as (here, there):
        mine, others = await followed(there), await followed(there, other)
        here.publish(KEY, grown(0))
        here.publish(other, Changed(tail=9))
        assert await next_of(mine) == grown(0)
        assert await next_of(others) == Changed(tail=9)


async def test_what_is_published_here_is_heard_here_at_once_and_only_once(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there):
        mine, far = await followed(here), await followed(there)
        seen: list[Hint] = []
        here.watch(lambda _, hint: seen.append(hint))
        there.watch(lambda _, hint: seen.append(hint))
        here.publish(KEY, grown(0))
        assert await next_of(mine) == grown(0)
        assert here.sent == 0, "it took no way to Redis and back"
        assert await next_of(far) == grown(0)
        there.publish(KEY, Changed(tail=5))
        assert await next_of(mine) == Changed(tail=5), "and not our own hint again"
        assert seen == [grown(0), Changed(tail=5)], "who watches a process sees what that process did"


async def test_wake_ups_reach_every_process(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there):
        near, far = Woken(here), Woken(there)
        here.publish(KEY, Changed(tail=4))
        here.publish(KEY, Changed(promoted=True))
        assert near == [(KEY, 4)]
        await until(lambda: (KEY, 4) in far)
        here.publish(KEY, Changed())
        await until(lambda: (KEY, None) in far)
        assert far.count((KEY, 4)) == 1


async def test_databases_that_share_a_redis_do_not_hear_each_other(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there), pair(valkey) as (stranger, _):
        mine, woken = await followed(there), Woken(there)
        stranger.publish(KEY, grown(0))
        stranger.publish(KEY, Changed(tail=99))
        await until(lambda: stranger.sent >= 2)
        here.publish(KEY, Changed(tail=1))
        assert await next_of(mine) == Changed(tail=1)
        assert woken == [(KEY, 1)]


async def test_channels_are_left_when_the_last_one_goes(valkey: Valkey) -> None:
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


async def test_another_process_is_heard(valkey: Valkey, tmp_path: Path) -> None:
    """In a process that is really another one."""
    name = f"two{next(_names)}"
    child = await asyncio.create_subprocess_exec(
        sys.executable, Path(__file__).with_name("publisher.py"), valkey.url, name, stdin=PIPE, stdout=PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with RedisLive(valkey.url, namespace=name) as live, patience():
            subscription, woken = await followed(live), Woken(live)
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


# How many messages


async def test_hints_of_one_moment_are_one_message_for_each_session(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there):
        mine = await followed(there)
        for number in range(100):
            here.publish(KEY, grown(number))
        hint = await next_of(mine)
        assert isinstance(hint, Grown)
        assert [delta.text for delta in hint.deltas] == ["x" * 100]
        await until(lambda: here.sent > 0)
        assert (here.sent, there.heard) == (1, 1)


async def test_more_than_is_worth_sending_sends_readers_to_the_store(valkey: Valkey) -> None:
    async with pair(valkey) as (here, there):
        mine = await followed(there)
        for number in range(300):
            here.publish(KEY, Progress(ToolCallId(str(number)), "x"))
        assert await next_of(mine) == Lost()
        assert there.heard == 1


# What is not ours


async def test_garbage_foreign_and_future_messages_are_ignored_with_a_line_each(
    valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(valkey) as (here, there):
        mine, channel = await followed(there), there._channel(KEY)
        other = Key(Owner("me"), SessionId("other"))
        for _ in range(3):
            valkey.ask("PUBLISH", channel, b"\xff\x00 not msgpack")
            valkey.ask("PUBLISH", channel, b"\x93\x09\xa2me\xc0")
            valkey.ask("PUBLISH", there._all, encode_told("me", KEY, [Lost()]))
            valkey.ask("PUBLISH", channel, encode_told("me", other, [Lost()]))
        await until(lambda: there.ignored >= 9)
        here.publish(KEY, Changed(tail=1))
        assert await next_of(mine) == Changed(tail=1)
    lines = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert len(lines) == 4, "three here, and one there, where only what is for all was heard"
    assert sum("of version 9" in line for line in lines) == 1


# When it fails


@pytest.mark.usefixtures("impatient")
async def test_when_redis_is_killed_everybody_looks_at_the_store_and_again_when_it_is_back(
    own_valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with pair(own_valkey) as (here, there):
        mine, woken = await followed(there), Woken(there)
        own_valkey.kill()
        assert await next_of(mine) == Lost()
        await until(lambda: not here.is_up and not there.is_up)
        assert here.describe() == "down, hints by polling"
        woken.clear()
        here.publish(KEY, grown(0))
        here.publish(KEY, Changed(tail=3))
        own_valkey.start()
        await until(lambda: here.is_up and there.is_up)
        assert here.describe() == "up"
        assert await next_of(mine) == Lost()
        await until(lambda: bool(woken))
        heard = there.heard
        here.publish(KEY, grown(1))
        while (hint := await next_of(mine)) == Lost():
            pass  # That the publisher dropped some is told as well.
        assert hint == grown(1)
        assert there.heard > heard
    assert len([line for line in caplog.messages if "can't be used" in line]) == 2
    assert len([line for line in caplog.messages if "is back" in line]) == 2


@pytest.mark.usefixtures("impatient")
async def test_a_redis_that_stands_still_holds_up_nobody_and_is_noticed(
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


async def test_a_hint_that_was_lost_on_its_way_out_is_told_as_lost(own_valkey: Valkey) -> None:
    """The connections of those who listen stay: they could not know."""
    async with pair(own_valkey) as (here, there):
        mine, woken = await followed(there), Woken(there)
        assert own_valkey.ask("CLIENT", "KILL", "TYPE", "normal").startswith(b":")
        here.publish(KEY, grown(0))
        here.publish(KEY, Changed(tail=3))
        assert await next_of(mine) == Lost()
        await until(lambda: (KEY, 3) in woken)
        assert there.is_up


@pytest.mark.usefixtures("impatient")
async def test_a_redis_that_nobody_has_anything_to_say_to_stays_up(
    own_valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(own_valkey):
        await until(lambda: pings(own_valkey) > 20)
    assert caplog.messages == []


def pings(server: Valkey) -> int:
    found = re.search(rb"cmdstat_ping:calls=(\d+)", server.ask("INFO", "commandstats"))
    return int(found[1]) if found else 0


async def test_a_flush_takes_nothing_away(own_valkey: Valkey) -> None:
    async with pair(own_valkey) as (here, there):
        mine = await followed(there)
        own_valkey.flush()
        here.publish(KEY, grown(0))
        assert await next_of(mine) == grown(0)
        assert here.is_up
        assert there.is_up


@pytest.mark.usefixtures("impatient")
async def test_a_redis_that_was_never_there_is_said_once_and_costs_nobody_a_hint_of_this_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with RedisLive(f"redis://:hush@127.0.0.1:{port}", namespace="x") as live:
        subscription = live.subscribe(KEY)
        live.publish(KEY, grown(0))
        assert await next_of(subscription) == grown(0)
        await until(lambda: bool(caplog.messages))
        assert live.others_wrote(), "who follows a session looks at the store at once"
        assert await next_of(subscription) == Lost()
    assert len(caplog.messages) == 1
    assert "hush" not in caplog.text


@pytest.mark.usefixtures("impatient")
async def test_a_password_is_used_and_never_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
def test_a_url_with_an_option_that_can_not_be_used_is_refused_without_being_repeated(option: str) -> None:
    with pytest.raises(UrlRefused) as error:
        RedisLive(f"redis://:hush@there?{option}", namespace="x")
    assert "hush" not in str(error.value)


# The net under it


async def test_while_redis_is_there_readers_look_at_the_store_now_and_then(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the process that died between a commit and its hint, and the one that knows nothing of Redis."""
    monkeypatch.setattr(redis, "NET_SECONDS", 0.05)
    async with pair(valkey) as (_, there):
        mine = await followed(there)
        for _ in range(10):
            assert not there.others_wrote()
        assert await next_of(mine) == Lost()


async def test_what_was_published_last_is_told_before_the_end(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a command does, that puts an answer and ends."""
    monkeypatch.setattr(redis, "FAREWELL_SECONDS", 30.0)
    name = f"last{next(_names)}"
    async with RedisLive(valkey.url, namespace=name) as there:
        mine, woken = await followed(there), Woken(there)
        async with RedisLive(valkey.url, namespace=name) as here:
            here.publish(KEY, Changed(tail=1))
        assert await next_of(mine) == Lost(), "it was not connected yet when it published"
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
async def test_a_certificate_that_nobody_vouches_for_is_not_believed(
    valkey: Valkey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        tls_in_front_of(valkey, self_signed(tmp_path)) as port,
        RedisLive(f"rediss://127.0.0.1:{port}", namespace="tls") as live,
    ):
        await until(lambda: bool(caplog.messages))
        assert not live.is_up
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
