"""What somebody waits for who uses the public Copilot client: its runtime's start, trivial turns, and the resuming of a
session that another process left.

Over stdio it starts the runtime itself; the turns are over TCP, as those of the lean client are.
"""

import statistics
import time
from pathlib import Path

from copilot import CopilotClient, CopilotSession, RuntimeConnection
from copilot.session import PermissionHandler

from bench.copilot_runtime import EXECUTABLE, environ, listening
from bench.models import ONE_TOKEN
from bench.place import Place
from bench.probes.copilot_turns import one_by_one

HOME = "home"


async def measure(place: Place) -> dict[str, float]:
    left, turn = await _talk(place)
    times = range(place.size.copilot_starts)
    pings = [await _until_first_ping(place, place.folder / f"empty-{number}") for number in times]
    resumed = [await _until_resumed(place, left) for _ in times]
    return {
        "copilot_start": statistics.median(pings) * 1000,
        "copilot_resume": statistics.median(whole for whole, _ in resumed) * 1000,
        "copilot_resume_call": statistics.median(call for _, call in resumed) * 1000,
        "copilot_turn_client": turn,
    }


async def _talk(place: Place) -> tuple[str, float]:
    """A session that had some turns, and how long they took."""
    async with listening(place, place.folder / HOME) as runtime:
        client = CopilotClient(connection=RuntimeConnection.for_uri(f"localhost:{runtime.port}"))
        await client.start()
        approve = PermissionHandler.approve_all
        talks = range(place.size.copilot_talks)
        sessions = [await client.create_session(on_permission_request=approve) for _ in talks]
        took = await one_by_one(_turn, sessions, place.size.copilot_turns)
        await client.force_stop()
    return sessions[0].session_id, took


async def _turn(session: CopilotSession) -> None:
    if await session.send_and_wait(ONE_TOKEN) is None:
        raise RuntimeError("a measured turn had no answer")


async def _until_first_ping(place: Place, home: Path) -> float:
    client = _client(place, home)
    started = time.perf_counter()
    await client.start()
    await client.ping()
    took = time.perf_counter() - started
    await client.stop()
    return took


async def _until_resumed(place: Place, session_id: str) -> tuple[float, float]:
    """Seconds from nothing, and for the call alone."""
    client = _client(place, place.folder / HOME)
    started = time.perf_counter()
    await client.start()
    connected = time.perf_counter()
    session = await client.resume_session(session_id, on_permission_request=PermissionHandler.approve_all)
    resumed = time.perf_counter()
    said = sum(event.type.value == "user.message" for event in await session.get_events())
    if said != place.size.copilot_turns:
        raise RuntimeError(f"the resumed session has {said} messages")
    await client.stop()
    return resumed - started, resumed - connected


def _client(place: Place, home: Path) -> CopilotClient:
    return CopilotClient(
        connection=RuntimeConnection.for_stdio(path=EXECUTABLE),
        working_directory=str(place.folder),
        env=environ(place, home),
    )
