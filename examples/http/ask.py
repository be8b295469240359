"""Ask an agent on a server: start one with `holdfast serve`, then `python ask.py What can you do?`.

A server of your own needs no key. For another one set HOLDFAST_URL and HOLDFAST_KEY.
"""

import asyncio
import os
import sys

from holdfast.client import connect


async def main() -> None:
    async with connect(os.environ.get("HOLDFAST_URL", "http://127.0.0.1:8787")) as server:
        session = await server.session()
        turn = await session.run(" ".join(sys.argv[1:]) or "Hello!")
        print(turn.text)


asyncio.run(main())
