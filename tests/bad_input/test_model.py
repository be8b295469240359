"""A provider that refuses, can't be reached or talks nonsense: the turn ends with a sentence and a stable code, and the
session works as soon as the provider does."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Runtime
from holdfast.config import Secret, load
from holdfast.events.session import SessionError
from holdfast.models.scripted import Reply
from holdfast.models.server import ModelServer
from holdfast.protocol.turn import TurnResult
from tests.faults.world import bodies_of, patience, runtime_over_http, says, settings
from tests.models.raw_server import RawServer, http

pytestmark = pytest.mark.anyio

GOOD = says(Reply(text="Here I am."))
KEY = "sk-right-0123456789"


def check_error(result: TurnResult, code: str) -> SessionError:
    assert result.reason == "error"
    assert result.error is not None
    assert result.error.code == code
    assert result.error.message.rstrip().endswith(".")
    return result.error


async def works_afterwards(database: Path, session_id: str) -> None:
    """The same session, with a provider that works."""
    async with ModelServer(GOOD) as server, runtime_over_http(database, server.url) as runtime, patience():
        assert (await runtime.open(session_id).run("And now?")).text == "Here I am."


def with_key(database: Path, url: str, key: str) -> Runtime:
    config = settings(database, model="openai/m", model_base_url=url, model_api_key=Secret(key))
    return Runtime(config=config)


async def test_a_wrong_key_is_named_as_the_cause_and_never_shown(database: Path) -> None:
    wrong = "sk-wrong-9876543210"
    async with ModelServer(GOOD, api_key=KEY) as server, patience():
        async with with_key(database, server.url, wrong) as runtime:
            session = await runtime.session()
            error = check_error(await session.run("Hello"), "model_unauthorized")
            assert not error.retryable
            assert "key" in error.message
            assert len(server.requests) == 0
        async with with_key(database, server.url, KEY) as runtime:
            again = runtime.open(session.id)
            assert (await again.run("And now?")).text == "Here I am."
            for event in [reading async for reading in again.events(follow=False)]:
                assert wrong not in repr(event)
                assert KEY not in repr(event)
    for path in database.parent.iterdir():
        if path.is_file():
            assert KEY.encode() not in path.read_bytes()
            assert wrong.encode() not in path.read_bytes()


async def test_a_provider_that_can_t_be_reached_is_tried_again_and_then_named(database: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        async with runtime_over_http(database, nobody, max_model_attempts=3) as runtime, patience():
            session = await runtime.session()
            error = check_error(await session.run("Hello"), "model_unreachable")
            assert error.retryable
            assert nobody.split("/")[2] in error.message
    await works_afterwards(database, session.id)


def chunk(delta: Any, **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta, **more}]}).encode() + b"\n\n"


NONSENSE = {
    "a web page": http(b"<html><body>Sign in</body></html>", content_type="text/html"),
    "a web page that says it streams": http(b"<html><body>Sign in</body></html>"),
    "broken JSON": http(b'data: {"choices": [{"delta": {"cont\n\ndata: [DONE]\n\n'),
    "a wrong type": http(chunk({"content": 7}) + b"data: [DONE]\n\n"),
    "choices of a wrong type": http(b'data: {"choices": "none"}\n\ndata: [DONE]\n\n'),
    "tool calls of a wrong type": http(chunk({"tool_calls": {"0": "x"}}) + b"data: [DONE]\n\n"),
    "bytes that are no text": http(b"data: \xff\xfe\xfd\n\n"),
    "nothing": http(b""),
    "no end": http(chunk({"content": "one "}), length=100_000),
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "deep nesting": http(b'data: {"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"),
}


@pytest.mark.parametrize("what", NONSENSE)
async def test_nonsense_ends_the_turn_with_a_sentence_and_the_session_works_afterwards(
    database: Path, what: str
) -> None:
    async with (
        RawServer([NONSENSE[what]]) as server,
        patience(),
        runtime_over_http(database, server.url, max_model_attempts=2) as runtime,
    ):
        session = await runtime.session()
        result = await session.run("Hello")
        assert result.error is not None, result
        check_error(result, result.error.code)
        assert result.error.code in ("model_garbage", "model_cut")
        assert len(await bodies_of(session, SessionError)) == 1
    await works_afterwards(database, session.id)


async def test_a_provider_that_falls_silent_is_given_up(database: Path) -> None:
    async with (
        RawServer([http(chunk({"content": "one "}), length=100_000)], hold=True) as server,
        patience(),
        runtime_over_http(database, server.url, max_model_attempts=2, read_timeout_seconds=0.2) as runtime,
    ):
        session = await runtime.session()
        check_error(await session.run("Hello"), "model_timeout")
    await works_afterwards(database, session.id)


def test_a_key_is_not_in_the_repr_of_its_settings(tmp_path: Path) -> None:
    config = load({"data_dir": tmp_path, "model_api_key": KEY}, {})
    assert KEY not in repr(config)
