"""A turn that waits for a person: this program may end before the answer comes, and another may give it.

Start it, answer n (later), and start it again: the question is still there, and the turn goes on once it is approved.
"""

import asyncio
from pathlib import Path

from holdfast import Runtime, TurnResult
from holdfast.server.embedded.session import Session


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
    async with Runtime(model="demo") as runtime:
        session = await runtime.session("approval-example", working_directory=str(Path.cwd()))
        turn = await session.run("Please write a note", message_id="the-note")
        while turn.reason == "waiting" and await ask_about(session, turn):
            turn = await session.result_of("the-note")
        print(turn.reason, turn.text)


asyncio.run(main())
