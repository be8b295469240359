"""The limits on an owner's turns hold for sessions that a client calls children, and for forks, as for any other."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.app import Runtime
from holdfast.config import load
from holdfast.events.ids import Key, Owner
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.server.errors import Conflict
from holdfast.server.operations import SessionOptions

RUNNING, IN_FLIGHT = 2, 4

ANN = Owner("ann")


@pytest.fixture(params=["sqlite", "postgresql"])
def environ(request: pytest.FixtureRequest) -> dict[str, str]:
    found = {
        "HOLDFAST_MAX_RUNNING_TURNS_PER_OWNER": str(RUNNING),
        "HOLDFAST_MAX_TURNS_IN_FLIGHT_PER_OWNER": str(IN_FLIGHT),
    }
    if request.param == "postgresql":
        found["HOLDFAST_DATABASE"] = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
async def runtime(environ: dict[str, str], tmp_path: Path) -> AsyncIterator[Runtime]:
    """One whose model never answers: what runs goes on running."""
    held = asyncio.Event()

    async def never(piece: int) -> None:
        await held.wait()

    model = ScriptedModel(Script((Rule((Reply(text="Hello."),)),)), gate=never)
    async with Runtime(config=load({"data_dir": tmp_path / "data"}, environ), model=model) as opened:
        yield opened


async def test_children_and_forks_of_a_client_s_own_making_take_up_turns(runtime: Runtime) -> None:
    operations = runtime.operations
    first = Key(ANN, await operations.create(ANN, SessionOptions()))
    await operations.send(first, "hello")
    children = [await operations.create(ANN, SessionOptions(parent=first.session)) for _ in range(3)]
    children += [await operations.fork(first, before=None, title="A copy") for _ in range(3)]
    for number, child in enumerate(children, 2):
        if number <= IN_FLIGHT:
            sent = await operations.send(Key(ANN, child), "hello")
            assert sent.waits_for_slot == (number > RUNNING)
        else:
            with pytest.raises(Conflict) as refused:
                await operations.send(Key(ANN, child), "hello")
            assert refused.value.code == "too_many_turns"
    assert (await runtime.store.turns(ANN)).slots <= RUNNING
    assert {(await operations.session(Key(ANN, child))).parent for child in children} == {first.session}
