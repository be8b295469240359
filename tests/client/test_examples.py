"""The examples, run as somebody would who has just started a server."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from tests.http.world import Place, Server, patience

EXAMPLES = Path(__file__).parents[2] / "examples" / "http"


async def run(name: str, *words: str, place: Place, server: Server, typed: str = "") -> str:
    environ = {
        **os.environ,
        "PYTHONPATH": str(EXAMPLES.parents[1] / "src"),
        "HOLDFAST_URL": server.url,
        "HOLDFAST_DATA_DIR": str(place.data),
    }
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(EXAMPLES / name), *words),
        env=environ,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    async with patience():
        out, err = await child.communicate(typed.encode())
    assert (child.returncode, err) == (0, b""), err.decode()
    return out.decode()


async def test_the_example_asks_a_local_server_without_a_key(place: Place) -> None:
    async with place.serve() as server:
        assert await run("ask.py", "good", "morning", place=place, server=server) == "Hello, world.\n"


async def test_an_approval_is_left_for_later_and_found_again_by_another_start_of_both(place: Place) -> None:
    async with place.serve() as server:
        first = await run("approve.py", place=place, server=server, typed="n\n")
        assert "Left for later." in first
        assert not (place.work / "note.txt").exists()
    async with place.serve() as server:
        again = await run("approve.py", place=place, server=server, typed="y\n")
    assert again.endswith("completed Written.\n")
    assert (place.work / "note.txt").read_text() == "hi"
