"""A `holdfast serve` or `holdfast worker` whose writer thread fails: it ends with an error, and leaves its sessions to
the next process."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from pathlib import Path

from holdfast import Runtime
from tests.http.world import Place, Server, code_of, patience

SOURCE = Path(__file__).parents[2] / "src"
BROKEN = Path(__file__).with_name("broken_writer.py")


@contextlib.asynccontextmanager
async def serve(place: Place) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(BROKEN), "serve", "--port", "0", "--model", "demo", "--data-dir", str(place.data)),
        cwd=place.work,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HOLDFAST_TITLES": "words"},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        assert process.stdout is not None
        async with patience():
            found = re.search(rb"serves (http://\S+) ", await process.stdout.readline())
        assert found is not None
        yield Server(process, found[1].decode(), place.data)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_server_whose_writer_died_answers_with_an_error_and_ends_with_another(own_place: Place) -> None:
    async with serve(own_place) as server, server.client() as client:
        session = await client.make()
        response = await client.post(f"/v1/sessions/{session}/messages", json={"text": "hello"})
        assert (response.status_code, code_of(response)) == (503, "store_writer_died")
        async with patience():
            _, err = await server.process.communicate()
        assert server.process.returncode == 1
    assert b"[store_writer_died]" in err
    assert (own_place.data / "holdfast.log").read_text().count("can't write any more") == 1
    assert list((own_place.data / "holdfast.db.live").iterdir()) == []


async def test_a_worker_whose_writer_died_ends_with_an_error(own_place: Place) -> None:
    async with Runtime(database=own_place.data / "holdfast.db", model="demo", work=False) as sender:
        await (await sender.session()).send("hello")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(BROKEN), "worker", "--model", "demo", "--data-dir", str(own_place.data)),
        cwd=own_place.work,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "BROKEN_WRITER_POINT": "claim:sessions:before"},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with patience():
            _, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert process.returncode == 1
    assert b"[store_writer_died]" in err
    assert list((own_place.data / "holdfast.db.live").iterdir()) == []


def test_a_process_that_can_t_end_by_itself_is_ended() -> None:
    script = (
        "import time; from holdfast.cli.process import end_within; "
        "from holdfast.store.writer_failure import writer_died; "
        "end_within(0.01, writer_died()); time.sleep(600)"
    )
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    ended = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, timeout=120)
    assert ended.returncode == 1
    assert b"[store_writer_died]" in ended.stderr
