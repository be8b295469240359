"""Read a session as it happens, from any process on the same database: python examples/follow_a_session.py SESSION"""

import asyncio
import sys

from holdfast import Runtime
from holdfast.events.event import Event, type_of
from holdfast.live.live import Delta


async def main(session_id: str) -> None:
    async with Runtime(work=False) as runtime:
        async for reading in runtime.open(session_id).events():
            match reading:
                case Delta(text=text):
                    print(text, end="", flush=True)
                case Event(body=body):
                    print(f"\n[{reading.position}] {type_of(body)}")
                case _:
                    pass


asyncio.run(main(sys.argv[1]))
