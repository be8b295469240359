"""Commands in the background: listed, read by offset, ended."""

import asyncio
import os
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests.http.world import Client, Place, code_of, patience

BASH = Path("/bin/sh")

pytestmark = pytest.mark.skipif(not BASH.exists(), reason="there is no shell")


async def started(client: Client, place: Place) -> tuple[str, dict[str, Any]]:
    """A session with a command that reads from a pipe, until that is closed."""
    os.mkfifo(place.work / "pipe")
    session = await client.make(allow=["shell"])
    await client.say(session, "start it")
    (task,) = (await client.get(f"/v1/sessions/{session}/tasks")).json()["tasks"]
    return session, task


async def opened(place: Place) -> TextIO:
    """The pipe, once the command reads from it."""
    return await asyncio.to_thread((place.work / "pipe").open, "w", encoding="utf-8")


async def test_a_command_is_listed_read_and_ended(own_place: Place) -> None:
    async with own_place.serve() as server, server.client() as client, patience():
        session, task = await started(client, own_place)
        assert (task["status"], task["command"], task["foreground"]) == ("running", "cat pipe", False)
        path = f"/v1/sessions/{session}/tasks/{task['id']}"
        with await opened(own_place) as pipe:
            pipe.write("one\ntwo\n")
            pipe.flush()
            output: dict[str, Any] = {"text": "", "next_offset": 0}
            while len(output["text"]) < 8:
                output = (await client.get(f"{path}/output")).json()
            assert output == {"offset": 0, "text": "one\ntwo\n", "next_offset": 8}
            part = (await client.get(f"{path}/output", params={"offset": 4, "length": 3})).json()
            assert part == {"offset": 4, "text": "two", "next_offset": 7}
            killed = await client.delete(path)
        assert killed.status_code == 200
        assert (killed.json()["task"]["status"], killed.json()["escaped"]) == ("killed", 0)
        assert (await client.get(path)).json()["status"] == "killed"
        again = await client.delete(path)
        assert (again.status_code, code_of(again)) == (409, "task_not_running")


async def test_a_command_that_ended_by_itself_says_how(own_place: Place) -> None:
    async with own_place.serve() as server, server.client() as client, patience():
        session, task = await started(client, own_place)
        with await opened(own_place) as pipe:
            pipe.write("é")
        while task["status"] == "running":
            task = (await client.get(f"/v1/sessions/{session}/tasks/{task['id']}")).json()
        assert (task["status"], task["exit_code"]) == ("completed", 0)
        path = f"/v1/sessions/{session}/tasks/{task['id']}/output"
        assert (await client.get(path)).json()["text"] == "é"


async def test_half_a_character_is_left_for_the_next_part(own_place: Place) -> None:
    async with own_place.serve() as server, server.client() as client, patience():
        session, task = await started(client, own_place)
        with await opened(own_place) as pipe:
            pipe.write("aé")
        path = f"/v1/sessions/{session}/tasks/{task['id']}"
        while (await client.get(path)).json()["status"] == "running":
            pass
        first = (await client.get(f"{path}/output", params={"length": 2})).json()
        assert (first["text"], first["next_offset"]) == ("a", 1)
        rest = (await client.get(f"{path}/output", params={"offset": 1, "length": 2})).json()
        assert (rest["text"], rest["next_offset"]) == ("é", 3)


@pytest.mark.parametrize("query", ["offset=-1", "length=0", "length=1000001", "offset=x", "more=1"])
async def test_a_part_is_asked_for_within_bounds(client: Client, query: str) -> None:
    session = await client.make()
    response = await client.get(f"/v1/sessions/{session}/tasks/t1/output?{query}")
    assert (response.status_code, code_of(response)) == (422, "invalid")


async def test_a_task_that_there_is_not_is_not_found(client: Client) -> None:
    session = await client.make()
    assert (await client.get(f"/v1/sessions/{session}/tasks")).json() == {"tasks": []}
    for response in (
        await client.get(f"/v1/sessions/{session}/tasks/t1"),
        await client.get(f"/v1/sessions/{session}/tasks/t1/output"),
        await client.delete(f"/v1/sessions/{session}/tasks/t1"),
    ):
        assert (response.status_code, code_of(response)) == (404, "task_not_found")
