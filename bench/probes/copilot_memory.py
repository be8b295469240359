"""The memory of a runtime for Copilot clients: with one client that has no session, then with a hundred of them.

Idle means that a session came, had a turn and was deleted: all that calling a model takes is there and stays. Each of
the hundred was created by the one client, which stays attached to it, and had one trivial turn.
"""

from bench.copilot_runtime import listening
from bench.lean_client import lean_client
from bench.memory import megabytes_of
from bench.place import Place


async def measure(place: Place) -> dict[str, float]:
    async with listening(place, place.folder / "home") as runtime, lean_client(runtime.port) as client:
        first = await client.create()
        await client.turn(first)
        await client.call("session.delete", sessionId=first)
        idle = megabytes_of(runtime.pid)
        for _ in range(place.size.copilot_sessions):
            await client.turn(await client.create())
        return {"copilot_idle_memory": idle, "copilot_sessions_memory": megabytes_of(runtime.pid)}
