"""Commands without a chosen model: a key in the environment chooses one, and the command says so."""

import asyncio
import signal
from pathlib import Path

import pytest

from holdfast.models.scripted import Reply, Rule, Script
from holdfast.models.server import ModelServer
from tests.cli.processes import Place

pytestmark = pytest.mark.anyio

HELLO = Script((Rule((Reply(text="From Claude."),)),))
KEY = "sk-very-secret-0123456789"
MODEL = "anthropic/claude-sonnet-5-5"
SAID = f"No model is chosen, and ANTHROPIC_API_KEY is set: the model is {MODEL}."


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def with_key(server: ModelServer) -> dict[str, str]:
    return {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.url.removesuffix("/v1")}


async def test_a_key_of_anthropic_alone_makes_run_work(place: Place) -> None:
    async with ModelServer(HELLO, api_key=KEY) as server:
        done = await place.run("run", "hello", **with_key(server))
    assert (done.code, done.out) == (0, "From Claude.\n")
    assert SAID in done.err
    assert KEY not in done.err


async def test_a_key_of_anthropic_alone_makes_chat_work(place: Place) -> None:
    async with ModelServer(HELLO, api_key=KEY) as server:
        done = await place.run("chat", typed="hello\n", **with_key(server))
    assert done.code == 0
    assert "From Claude." in done.out
    assert SAID in done.err


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("worker",)])
async def test_a_server_and_a_worker_say_which_model_a_key_has_chosen(place: Place, command: tuple[str, ...]) -> None:
    async with ModelServer(HELLO, api_key=KEY) as server:
        child = await place.start(*command, OPENROUTER_API_KEY="other", **with_key(server))
        assert child.stdout is not None
        async with asyncio.timeout(60):
            while SAID.removesuffix(".") not in (line := (await child.stdout.readline()).decode()):
                assert line, (await child.communicate())[1]
        child.send_signal(signal.SIGTERM)
        await child.communicate()
    assert "OPENROUTER_API_KEY could choose others" in line
    assert "--model or HOLDFAST_MODEL" in line


async def test_a_chosen_model_is_not_announced(place: Place) -> None:
    async with ModelServer(HELLO, api_key=KEY) as server:
        chosen = await place.run("run", "hello", "--model", "anthropic/other", **with_key(server))
        demo = await place.run("run", "hello", HOLDFAST_MODEL="demo", **with_key(server))
    assert (chosen.out, chosen.err) == ("From Claude.\n", "")
    assert (demo.code, demo.err) == (0, "")


async def test_without_any_key_the_model_is_the_demo(place: Place) -> None:
    done = await place.run("run", "hello")
    assert (done.code, done.err) == (0, "")


async def test_a_server_that_should_think_with_a_model_that_can_not_does_not_start(place: Place) -> None:
    words = ("serve", "--port", "0", "--model", "openai/gpt-4o", "--model-base-url", "http://127.0.0.1:1/v1")
    done = await place.run(*words, HOLDFAST_THINKING="4000")
    assert (done.code, done.out) == (2, "")
    assert "HOLDFAST_THINKING is 4000, but the model openai/gpt-4o does not think" in done.err


async def test_a_wrong_file_of_facts_ends_the_start_of_every_command(place: Place) -> None:
    path = place.work / "models.toml"
    path.write_text('["openai/x"]\nwindow = -1\n')
    for command in (("serve", "--port", "0"), ("worker",), ("run", "hello"), ("doctor",)):
        done = await place.run(*command, HOLDFAST_MODELS=str(path))
        assert (done.code, done.out) == (2, "")
        assert "models.toml, where window of the model openai/x is -1." in done.err
    assert not any(place.data.glob("*.db"))
