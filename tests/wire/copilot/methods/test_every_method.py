"""Every method in the client's generated code is answered at once, with an error sentence or a result that it can
parse."""

import inspect
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from copilot.generated import rpc

from holdfast.server.copilot.surface import METHODS
from tests.wire.copilot.methods.world import Client, Session, desk_at

pytestmark = pytest.mark.anyio

SOURCE = inspect.getsource(rpc)

CALLS = re.findall(r'(?:return )?([\w.(]*)await self\._client\.request\("([\w.]+)"', SOURCE)
"""The functions that parse a method's result, from the outside to the inside, and the method's name."""

NAMES = sorted({name for _, name in CALLS})
READERS = {name: readers.strip("(").split("(") for readers, name in CALLS if readers}

BY_THE_PROCESS = {"runtime.shutdown"}
"""Methods that end the process, which are tested with a real process."""

SENTENCE = re.compile(r"Unhandled method \S+|Request \S+ failed with message: .{6,}", re.DOTALL)


@pytest.fixture(scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """One client for all tests; each test has its own session."""
    async with desk_at(tmp_path_factory.mktemp("methods")) as desk:
        yield desk.client()


def test_generated_client_code_is_parsed() -> None:
    assert len(NAMES) > 500
    assert len(READERS) > 300
    assert {"session.name.get", "session.tasks.list", "models.list", "sessions.fork"} <= set(READERS)


@pytest.mark.parametrize("name", sorted(set(NAMES) - BY_THE_PROCESS))
async def test_every_generated_method_answers_without_its_parameters(session: Session, name: str) -> None:
    await check(session.client, name, {"sessionId": session.id})


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(NAMES)))
async def test_methods_of_hand_written_clients_are_answered(session: Session, name: str) -> None:
    await check(session.client, name, {"sessionId": session.id})


@pytest.mark.parametrize("name", sorted(set(METHODS) | set(NAMES) - BY_THE_PROCESS))
async def test_every_method_answers_for_a_missing_session(client: Client, name: str) -> None:
    await check(client, name, {"sessionId": "nope"})


PARAMETERS = set(
    re.findall(
        r'(?:text|param|params\.get)\("(\w+)"',
        "\n".join(inspect.getsource(module) for found in METHODS.values() if (module := inspect.getmodule(found))),
    )
)
"""The parameter names of all methods."""

ODD: list[Any] = [{"x": [1]}, [{}], [None], 5, -1, True, "", "\0", "\ud83d", "../..", "x" * 70_000]


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_odd_parameters_are_refused_with_a_sentence(session: Session, name: str) -> None:
    for odd in ODD:
        await check(session.client, name, {**dict.fromkeys(PARAMETERS, odd), "sessionId": session.id})


async def check(client: Client, name: str, params: dict[str, Any]) -> None:
    answer = await client.answer(name, **params)
    if "error" in answer:
        code, message = answer["error"]["code"], answer["error"]["message"]
        assert code in (-32601, -32603), code
        assert SENTENCE.fullmatch(message), message
        assert "Traceback" not in message
        assert "Internal error" not in message
        return
    result = answer["result"]
    for reader in reversed(READERS.get(name, [])):
        result = eval(reader, vars(rpc))(result)
