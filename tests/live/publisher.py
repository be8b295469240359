"""A separate process that publishes a thousand pieces of text, one by one, once it gets the signal."""

import asyncio
import sys

from holdfast.events.ids import Key, MessageId, Owner, Position, SessionId
from holdfast.live.live import Changed, Delta, Grown
from holdfast.live.redis import RedisLive

KEY = Key(Owner("me"), SessionId("s"))


async def main(url: str, name: str) -> None:
    async with RedisLive(url, namespace=name) as live:
        while not live.is_up:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        print("up", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for number in range(1_000):
            delta = Delta(message_id=MessageId("m"), block=0, kind="text", offset=number, text="x")
            live.publish(KEY, Grown(Position(1), (0, number), (delta,)))
            await asyncio.sleep(0)
        live.publish(KEY, Changed(tail=7))
        await asyncio.to_thread(sys.stdin.readline)


asyncio.run(main(*sys.argv[1:]))
