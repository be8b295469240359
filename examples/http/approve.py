"""A turn on a server that waits for a person. This program may end before the answer comes; started again, it finds the
same turn by the ids that it chose. So may the server: nothing is lost, and nothing is done twice.
"""

import asyncio
import os

from holdfast.client import Session, TurnResult, connect


async def ask_about(session: Session, turn: TurnResult) -> bool:
    """Put every open request to the person; False if one is left for later."""
    for request in turn.requests:
        said = await asyncio.to_thread(input, f"May it {request.title}? [y/n] ")
        if said.strip().lower() != "y":
            print("Left for later. Nothing is lost; start me again.")
            return False
        await session.approve(request.id)
    return True


async def main() -> None:
    async with connect(os.environ.get("HOLDFAST_URL", "http://127.0.0.1:8787")) as server:
        session = await server.session("approval-over-http")
        turn = await session.run("Please write a note", message_id="the-note")
        while turn.reason == "waiting" and await ask_about(session, turn):
            turn = await session.result_of("the-note")
        print(turn.reason, turn.text)


asyncio.run(main())
