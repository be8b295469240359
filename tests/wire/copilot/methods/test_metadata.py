"""A session's metadata: its directory, whether it is busy, how full its context is, and its usage."""

from pathlib import Path

import pytest

from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from tests.wire.copilot.methods.world import Client, Hold, Refused, Session, desk_at

pytestmark = pytest.mark.anyio


async def test_snapshot_shows_the_settings(session: Session, tmp_path: Path) -> None:
    await session.ask("mode.set", mode="autopilot")
    await session.ask("name.set", name="Mine")
    found = await session.ask("metadata.snapshot")
    assert (found["currentMode"], found["summary"], found["selectedModel"]) == ("autopilot", "Mine", "first")
    assert (found["workingDirectory"], found["workspacePath"]) == (str(tmp_path / "work"), str(session.folder))
    assert (found["isRemote"], found["alreadyInUse"]) == (False, False)


async def test_a_session_is_processing_from_the_message_to_the_end_of_its_turn(tmp_path: Path) -> None:
    hold = Hold()
    async with desk_at(tmp_path, "Done.", gate=hold) as desk:
        session = await desk.client().session(streaming=True)
        assert await session.ask("metadata.isProcessing") == {"processing": False}
        assert await session.ask("metadata.activity") == {"hasActiveWork": False, "abortable": False}
        await session.ask("send", prompt="Work")
        await hold.until_reached()
        assert await session.ask("metadata.isProcessing") == {"processing": True}
        assert await session.ask("metadata.activity") == {"hasActiveWork": True, "abortable": True}
        hold.release()
        await session.client.until("session.idle")
        assert await session.ask("metadata.isProcessing") == {"processing": False}


async def test_context_change_is_announced_with_its_known_fields(session: Session, tmp_path: Path) -> None:
    context = {"cwd": str(tmp_path / "work"), "branch": "main", "repository": "a/b", "unknown": "x"}
    assert await session.ask("metadata.recordContextChange", context=context) == {}
    told = await session.client.until("session.context_changed")
    assert told == {"cwd": str(tmp_path / "work"), "branch": "main", "repository": "a/b"}


async def test_context_of_another_directory_is_not_announced(session: Session) -> None:
    assert await session.ask("metadata.recordContextChange", context={"cwd": "/somewhere"}) == {}
    await session.ask("log", message="After it")
    await session.client.until("session.info")
    assert session.client.data("session.context_changed") == []


@pytest.mark.parametrize("directory", ["nowhere", "../work/nowhere", "", "a-file"])
async def test_session_is_not_moved_to_a_missing_directory(session: Session, tmp_path: Path, directory: str) -> None:
    (tmp_path / "work" / "a-file").write_text("")
    if directory:
        with pytest.raises(Refused, match=r"does not exist\. Name one that does"):
            await session.ask("metadata.setWorkingDirectory", workingDirectory=directory)
    else:
        told = await session.ask("metadata.setWorkingDirectory", workingDirectory=directory)
        assert told == {"workingDirectory": str(tmp_path / "work")}


async def test_context_tokens_are_estimated_from_characters(client: Client) -> None:
    session = await client.session(systemMessage={"mode": "replace", "content": "x" * 400}, availableTools=["view"])
    before = await session.ask("metadata.recomputeContextTokens", modelId="first")
    assert before == {"totalTokens": 100, "messagesTokenCount": 0, "systemTokenCount": 100}
    await session.say("y" * 4_000)
    found = (await session.ask("metadata.contextInfo", promptTokenLimit=128_000, outputTokenLimit=4_096))["contextInfo"]
    assert 1_000 < found["conversationTokens"] < 1_100
    assert found["toolDefinitionsTokens"] > 50
    assert found["totalTokens"] == sum(
        found[name] for name in ("systemTokens", "conversationTokens", "toolDefinitionsTokens", "mcpToolsTokens")
    )
    assert (found["limit"], found["compactionThreshold"], found["bufferTokens"]) == (132_096, 102_400, 10_496)


async def test_usage_is_summed_per_model(tmp_path: Path) -> None:
    async with desk_at(tmp_path) as desk:
        used = TokenUsage(input_tokens=100, output_tokens=10)
        rules = (Rule((Reply(text="Spent.", usage=used),)),)
        desk.runtime._given_model = ScriptedModel(Script(rules), "copilot/first")
        session = await desk.client().session()
        assert (await session.ask("usage.getMetrics"))["modelMetrics"] == {}
        await session.say("Spend")
        await session.say("Spend again")
        found = await session.ask("usage.getMetrics")
        assert found["totalUserRequests"] == 2
        assert (found["lastCallInputTokens"], found["lastCallOutputTokens"]) == (100, 10)
        (metric,) = found["modelMetrics"].values()
        assert (metric["requests"]["count"], metric["usage"]["inputTokens"]) == (2, 200)
