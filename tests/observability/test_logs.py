"""Log lines: programs can parse them, they name their activity, and they hold no secrets."""

import asyncio
import io
import logging
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.observability.activity import ActivityContext, current_activity
from holdfast.observability.logs import (
    FIELDS,
    JsonLineFormatter,
    LineFormatter,
    RotatingFile,
    TextLineFormatter,
    line_formatter,
)
from tests.http.world import Model, Place, Server, patience

pytestmark = pytest.mark.anyio

MODEL_KEY = "planted-model-key-0123456789"
PROMPT = "the prompt about a heron"
API_KEY = re.compile(r"hf_[0-9a-f]{12}_[A-Za-z0-9_-]{43}")


def logged(formatter: LineFormatter, *said: Any, **more: Any) -> str:
    """One log record, formatted."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter)
    logger = logging.Logger("tests.logs")
    logger.addHandler(handler)
    logger.error(*said, **more)
    return written.getvalue()


def read(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


async def test_every_server_log_line_is_json_with_its_activity(tmp_path: Path) -> None:
    async with Model() as model:
        place = Place(tmp_path, model)
        async with place.serve("--log-format", "json") as server, server.client() as client:
            session = await client.make()
            asked = {"x-request-id": "mine-1"}
            await client.post(f"/v1/sessions/{session}/stream", json={"text": PROMPT}, headers=asked)
            await client.get(f"/v1/sessions/{session}?limit=2&before=9")
            await client.get("/healthz")
            turn = next(
                event["data"]["turnId"]
                for event in await client.events(session)
                if event["type"] == "holdfast.turn_started"
            )
            assert await server.end() == 0
        found = read(place.data / "holdfast.log")
    for line in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert {"level", "logger", "message", "process"} <= set(line)
    (ended,) = [line for line in found if line["message"].startswith("turn ended: completed")]
    assert (ended["session_id"], ended["turn_id"], ended["owner"]) == (session, turn, "local")
    requests = [line for line in found if line["logger"] == "holdfast.server.http.access"]
    sent = next(line for line in requests if line["request_id"] == "mine-1")
    assert sent["duration_ms"] > 0
    assert {name: sent[name] for name in ("method", "route", "status", "owner", "session_id")} == {
        "method": "POST",
        "route": "/v1/sessions/{session_id}/stream",
        "status": 200,
        "owner": "local",
        "session_id": session,
    }
    assert "/healthz" not in {line["route"] for line in requests}


async def test_every_response_has_a_request_id_and_keeps_a_valid_one_of_the_client(tmp_path: Path) -> None:
    async with Place(tmp_path).serve() as server, server.client() as client, server.client("") as anonymous:
        given = await client.get("/v1/models", headers={"x-request-id": "trace:1/a-b_c.d"})
        assert given.headers["x-request-id"] == "trace:1/a-b_c.d"
        made = set()
        for odd in ("", "a b", "x" * 129, 'quo"te', "é"):
            refused = await anonymous.get("/v1/models", headers={b"x-request-id": odd.encode()})
            assert refused.status_code == 401
            made.add(refused.headers["x-request-id"])
        assert len(made) == 5
        assert all(re.fullmatch(r"[0-9a-f-]{36}", found) for found in made)


@pytest.mark.parametrize("level", ["info", "debug"])
async def test_log_holds_neither_secrets_nor_message_text(tmp_path: Path, level: str) -> None:
    """Keys and tokens at any level; the text of people and models at `info`."""
    async with Model() as model:
        place = Place(tmp_path, model)
        made = await place.run("keys", "create", "--name", "laptop", "--role", "admin")
        key = API_KEY.search(made.out)
        assert key is not None, made.err
        environ: dict[str, Any] = {
            "HOLDFAST_MODEL_API_KEY": MODEL_KEY,
            "HOLDFAST_LOG_FORMAT": "json",
            "HOLDFAST_LOG_LEVEL": level,
        }
        async with place.serve("--auth", "keys", **environ) as server, server.client(key[0]) as client:
            session = await client.make()
            await client.say(session, PROMPT)
            await client.say(session, f"show the environment {MODEL_KEY}")
            await client.get(f"/v1/sessions/{session}", params={"token": key[0], "q": "heron"})
            await client.post(f"/v1/sessions/{session}/stream", content=b'{"text": "a heron", "nonsense": 1}')
            assert await server.end() == 0
        log = (place.data / "holdfast.log").read_text()
    assert "turn ended" in log
    for secret in (MODEL_KEY, key[0]):
        assert secret not in log
    if level == "info":
        assert "heron" not in log
        assert "Hello, world" not in log


async def test_start_token_is_not_in_the_log(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.serve(HOLDFAST_LOG_LEVEL="debug") as server, server.client() as client:
        token = server.token
        await client.get(f"/?token={token}")
        await client.get(f"/v1/sessions/{token}")
        assert await server.end() == 0
    assert token not in (place.data / "holdfast.log").read_text()


async def test_stderr_log_is_json_when_stderr_is_not_a_terminal(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "serve", "--port", "0", "--data-dir", str(tmp_path)),
        *("--log-to", "stderr"),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    assert child.stdout is not None
    async with patience():
        found = re.search(rb"serves (http://\S+) ", await child.stdout.readline())
        assert found is not None
        async with Server(child, found[1].decode(), tmp_path).client("") as anonymous:
            await anonymous.get("/v1/models")
        child.terminate()
        _, err = await child.communicate()
    (line,) = [msgspec.json.decode(line) for line in err.splitlines()]
    assert (line["route"], line["status"], line["owner"]) == ("", 401, "")
    assert not (tmp_path / "holdfast.log").exists()


# The formatters

SECRETS = [
    ("postgresql://ada:s3cret@there/x", "s3cret"),
    ("GET /?token=abcdefgh&x=1", "abcdefgh"),
    ("Authorization: Bearer abc.def-123", "abc.def-123"),
    ("key hf_0123456789ab_" + "x" * 43, "x" * 43),
    ("sk-" + "ant-" + "abcdefghijklmnop", "abcdefghijklmnop"),
    ("ghp_abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrstuvwxyz"),
    ("the token eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl is old", "c2lnbmF0dXJl"),
]


@pytest.mark.parametrize(("said", "secret"), SECRETS)
@pytest.mark.parametrize("kind", ["text", "json"])
def test_text_that_looks_like_a_secret_is_redacted(kind: Any, said: str, secret: str) -> None:
    try:
        raise ValueError(said)
    except ValueError:
        line = logged(line_formatter(kind), "failed: %s", said, exc_info=True, extra={FIELDS: {"what": said}})
    assert secret not in line
    assert "[redacted]" in line


def test_known_secret_is_redacted() -> None:
    formatter = JsonLineFormatter()
    formatter.hide(lambda text: text.replace('pass"word', "[redacted]"))
    assert "word" not in logged(formatter, 'it is pass"word')


def test_logged_input_cannot_forge_a_line() -> None:
    said = "first\n2026-01-01 second\x1b[2J\ud800"
    assert logged(TextLineFormatter(), "%s", said).count("\n") == 1
    line = logged(JsonLineFormatter(), "%s", said, extra={FIELDS: {"more": said}})
    assert line.count("\n") == 1
    assert msgspec.json.decode(line)["message"].startswith("first\n2026-01-01 second\x1b[2J")


def test_text_line_names_its_activity() -> None:
    current_activity.set(ActivityContext(owner="ada", session_id="s", turn_id="t", tool_call_id="c", trace_id="1f"))
    line = logged(TextLineFormatter(), "lost %d", 2)
    assert line.endswith("ERROR tests.logs: lost 2 [owner=ada session_id=s turn_id=t tool_call_id=c trace_id=1f]\n")
    current_activity.set(None)


def test_traceback_is_one_json_value() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        line = msgspec.json.decode(logged(JsonLineFormatter(), "failed", exc_info=True))
    assert line["error"].endswith("ValueError: no")


NAMES = (*(f"a.log.{number}" for number in range(6, 0, -1)), "a.log")


def test_full_log_file_is_rotated_without_losing_a_line(tmp_path: Path) -> None:
    handler = RotatingFile(tmp_path / "a.log", maxBytes=100, backupCount=6, encoding="utf-8")
    handler.setFormatter(line_formatter("text"))
    said = [f"line {number}" for number in range(12)]
    for text in said:
        handler.emit(logging.LogRecord("a", logging.INFO, "", 0, text, (), None))
    handler.close()
    parts = [part for name in NAMES if (part := tmp_path / name).exists()]
    assert len(parts) > 2
    assert [line.rsplit(": ", 1)[1] for part in parts for line in part.read_text().splitlines()] == said
    assert all(100 <= part.stat().st_size < 200 for part in parts[:-1])
