"""`holdfast serve` as it is started by hand, on a database of its own: durable, with a token, and with one model."""

import os
import re
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from bench import served
from bench.http_client import Connection, request_bytes
from bench.served import Served

PLENTY_OF_STREAMS = 5_000
"""More than any probe opens. All its clients are one person."""


@asynccontextmanager
async def holdfast(folder: Path, model_url: str, *options: str, **settings: str) -> AsyncIterator[Served]:
    """Its data and its working directory are in that folder, which must exist."""
    data = data_of(folder)
    command = (
        *(sys.executable, "-m", "holdfast", "serve", "--port", "0", "--data-dir", str(data)),
        *("--model", "openai/bench", "--model-base-url", model_url, *options),
    )
    environ = {
        **os.environ,
        "HOLDFAST_STREAMS_PER_OWNER": str(PLENTY_OF_STREAMS),
        "HOLDFAST_DRAIN_SECONDS": "0",
        **settings,
    }
    async with served.announced(command, cwd=folder, environ=environ) as (child, said):
        found = re.search(rb"serves (http://\S+:(\d+)) ", said)
        if found is None:
            raise RuntimeError(f"holdfast serve did not say where it listens, but {said!r}")
        token = (data / f"serve-{int(found[2])}.token").read_text("ascii").strip()
        yield Served(child.pid, found[1].decode(), token)


def data_of(folder: Path) -> Path:
    return folder / "data"


async def make_session(server: Served, connection: Connection) -> str:
    """One that has a title, so that nobody asks the model for one: a turn is one call, as it is for a relay."""
    asked = request_bytes("POST", host_of(server), "/v1/sessions", b'{"title": "Measured"}', headers=server.headers)
    return str((await connection.ask(asked)).expect(201).json()["id"])


def message_request(server: Served, session: str, text: str) -> bytes:
    """Say something in a session, and read nothing of what comes of it."""
    path, body = f"/v1/sessions/{session}/messages", msgspec.json.encode({"text": text})
    return request_bytes("POST", host_of(server), path, body, headers=server.headers)


def log_request(server: Served, session: str) -> bytes:
    """Read a session's log, and follow it."""
    headers = {**server.headers, "accept": "text/event-stream"}
    return request_bytes("GET", host_of(server), f"/v1/sessions/{session}/events", headers=headers)


def turn_request(server: Served, session: str, text: str) -> bytes:
    """Say something in a session, and read the whole turn that comes of it."""
    path, body = f"/v1/sessions/{session}/stream", msgspec.json.encode({"text": text})
    return request_bytes("POST", host_of(server), path, body, headers=server.headers)


def host_of(server: Served) -> str:
    return server.url.removeprefix("http://")


def answers_in_database(folder: Path) -> dict[str, str]:
    """What the model said in every session, as the file has it, read by nobody's code but SQLite's own."""
    database = sqlite3.connect(f"file:{data_of(folder) / 'holdfast.db'}?mode=ro", uri=True)
    try:
        rows = database.execute("SELECT session, data FROM event WHERE type = 'assistant.message' ORDER BY number")
        return {session: data.decode() for session, data in rows}
    finally:
        database.close()
