"""The name, the mode, the model and the options of a session: a new value is stored, announced and used."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.models.scripted import ScriptedCall
from tests.wire.copilot.methods.world import Client, Desk, Refused, Session, desk_at

pytestmark = pytest.mark.anyio


async def test_session_has_no_name_before_its_first_message(session: Session) -> None:
    assert await session.ask("name.get") == {"name": None}
    await session.say("Hello there")
    assert await session.ask("name.get") == {"name": "Hello there"}


async def test_name_is_announced_to_all_connections_even_unattached_ones(desk: Desk, session: Session) -> None:
    stranger = desk.client()
    await session.ask("name.set", name="  Mine  ")
    assert await session.ask("name.get") == {"name": "Mine"}
    assert await session.client.until("session.title_changed") == {"title": "Mine"}
    told = await stranger.until_session("updated")
    assert (told["sessionId"], told["metadata"]["summary"]) == (session.id, "Mine")


async def test_automatic_name_replaces_only_an_automatic_name(session: Session) -> None:
    await session.say("Hello there")
    assert await session.ask("name.setAuto", summary=" A greeting ") == {"applied": True}
    assert await session.ask("name.setAuto", summary="Another one") == {"applied": True}
    assert await session.ask("name.get") == {"name": "Another one"}
    await session.ask("name.set", name="Chosen")
    assert await session.ask("name.setAuto", summary="A third") == {"applied": False}
    assert await session.ask("name.get") == {"name": "Chosen"}


async def test_name_given_at_creation_counts_as_chosen(client: Client) -> None:
    session = await client.session(name="From the start")
    assert await session.ask("name.setAuto", summary="Made up") == {"applied": False}


async def test_empty_automatic_name_is_not_applied(session: Session) -> None:
    assert await session.ask("name.setAuto", summary="   ") == {"applied": False}


@pytest.mark.parametrize("name", ["", " \n"])
async def test_empty_name_is_refused(session: Session, name: str) -> None:
    with pytest.raises(Refused, match=r"Request session\.name\.set failed with message: Session name cannot be empty"):
        await session.ask("name.set", name=name)


async def test_mode_change_is_announced_once(session: Session) -> None:
    for _ in range(2):
        told = await session.ask("mode.set", mode="plan")
        assert told == {"status": "unchanged", "modelChanged": False, "modeApplied": True}
    assert await session.ask("mode.get") == "plan"
    await session.ask("mode.set", mode="interactive")
    await session.client.until("session.mode_changed", lambda data: data["newMode"] == "interactive")
    assert [data["newMode"] for data in session.client.data("session.mode_changed")] == ["plan", "interactive"]


async def test_mode_is_not_set_if_another_one_was_expected(session: Session) -> None:
    told = await session.ask("mode.set", mode="plan", expectedMode="autopilot")
    assert told["modeApplied"] is False
    assert await session.ask("mode.get") == "interactive"


async def test_unknown_mode_is_refused(session: Session) -> None:
    with pytest.raises(Refused, match=r"'shell' is no mode\. Use one of interactive, plan, autopilot"):
        await session.ask("mode.set", mode="shell")


async def test_model_and_effort_are_switched_in_one_event(session: Session) -> None:
    assert await session.ask("model.getCurrent") == {"modelId": "first"}
    told = await session.ask("model.switchTo", modelId="second", reasoningEffort="high")
    assert told["message"] == "Model changed from first to second (high)"
    assert await session.ask("model.getCurrent") == {"modelId": "second", "reasoningEffort": "high"}
    change = await session.client.until("session.model_change", lambda data: data["newModel"] == "second")
    assert change == {"newModel": "second", "previousModel": "first", "reasoningEffort": "high"}


async def test_unknown_model_is_refused_and_nothing_changes(session: Session) -> None:
    with pytest.raises(Refused, match=r"Model 'third' is not available\. Available models: first, second"):
        await session.ask("model.switchTo", modelId="third", reasoningEffort="high")
    assert await session.ask("model.getCurrent") == {"modelId": "first"}


async def test_auto_means_the_first_model(session: Session) -> None:
    await session.ask("model.switchTo", modelId="second")
    assert (await session.ask("model.switchTo", modelId="auto"))["modelId"] == "first"


async def test_models_are_listed_after_auto(session: Session) -> None:
    listed = await session.client.ask("models.list")
    assert [found["id"] for found in listed["models"]] == ["auto", "first", "second"]
    assert (await session.ask("model.list"))["list"] == listed["models"]


async def test_model_of_another_client_provider_is_called_there(desk: Desk, client: Client) -> None:
    session = await client.session(
        model="one/a",
        providers=[
            {"name": "one", "baseUrl": "https://one.example/v1", "apiKey": "key-one"},
            {"name": "two", "baseUrl": "https://two.example/v1", "apiKey": "key-two"},
        ],
        models=[{"id": "a", "provider": "one"}, {"id": "b", "provider": "two", "wireModel": "b-wire"}],
    )
    assert (await session.ask("model.switchTo", modelId="two/b"))["modelId"] == "two/b"
    state = await desk.runtime.operations.state(desk.key(session))
    assert state.provider is not None
    assert (state.provider.base_url, state.provider.model) == ("https://two.example/v1", "b-wire")
    secrets = await desk.runtime.credentials.for_provider(desk.key(session), state.provider)
    assert secrets.api_key == "key-two"


async def test_another_model_of_the_only_provider_is_chosen_by_its_plain_name(desk: Desk, client: Client) -> None:
    provider = {"baseUrl": "https://one.example/v1", "apiKey": "key-one", "modelId": "a"}
    session = await client.session(model="a", provider=provider)
    await session.ask("model.switchTo", modelId="c")
    state = await desk.runtime.operations.state(desk.key(session))
    assert state.provider is not None
    assert (state.model, state.provider.model) == ("c", None)


async def test_provider_can_be_added_later(desk: Desk, session: Session) -> None:
    provider = {"baseUrl": "https://one.example/v1", "apiKey": "key-one", "wireModel": "a-wire"}
    await session.ask("options.update", provider=provider, model="a")
    state = await desk.runtime.operations.state(desk.key(session))
    assert state.provider is not None
    assert (state.model, state.provider.model) == ("a", "a-wire")
    assert (await desk.runtime.credentials.for_provider(desk.key(session), state.provider)).api_key == "key-one"


BAD: list[dict[str, Any]] = [
    {"baseUrl": "https://one.example/v1", "apiKey": "a\nsecret"},
    {"baseUrl": "https://one.example/v1", "headers": {"a b": "secret"}},
    {"baseUrl": "nonsense", "apiKey": "secret"},
]


@pytest.mark.parametrize("provider", BAD)
@pytest.mark.parametrize("method", ["session.create", "session.resume", "session.options.update"])
async def test_unusable_provider_is_refused_and_nothing_changes(
    desk: Desk, session: Session, method: str, provider: dict[str, Any]
) -> None:
    session_id = "new" if method == "session.create" else session.id
    with pytest.raises(Refused, match=r"can't be made|can't be used") as refused:
        await session.client.ask(method, sessionId=session_id, provider=provider, model="a")
    assert "secret" not in refused.value.message
    assert (await desk.runtime.operations.state(desk.key(session))).provider is None
    assert await session.client.ask("session.getMetadata", sessionId="new") == {}
    assert [found.id async for found in desk.runtime.sessions()] == [session.id]


@pytest.mark.parametrize("directory", ["x" * 5_000, "a/" * 3_000, "\0", "loop"])
async def test_impossible_directory_name_is_refused(session: Session, tmp_path: Path, directory: str) -> None:
    (tmp_path / "work" / "loop").symlink_to(tmp_path / "work" / "loop")
    for method in ("session.create", "session.options.update"):
        with pytest.raises(Refused, match="working directory"):
            await session.client.ask(method, sessionId=session.id, workingDirectory=directory)


async def test_options_update_changes_only_the_named_options(desk: Desk, session: Session, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    told = await session.ask(
        "options.update",
        clientName="tests",
        enableStreaming=True,
        workingDirectory=str(elsewhere),
        reasoningEffort="low",
        model="second",
        systemMessage={"mode": "replace", "content": "Be brief."},
        coauthorEnabled=False,
        featureFlags={"x": True},
    )
    assert told == {"success": True, "pluginHookCount": 0}
    state = await desk.runtime.operations.state(desk.key(session))
    assert (state.client_name, state.stream, state.working_directory) == ("tests", True, str(elsewhere))
    assert (state.model, state.reasoning_effort) == ("copilot/second", "low")
    assert (state.system_message, state.system_mode) == ("Be brief.", "replace")
    assert state.tools is not None
    assert "view" in state.tools


async def test_options_without_effect_leave_no_trace(session: Session) -> None:
    before = await session.events()
    await session.ask("options.update", skipCustomInstructions=True, installedPlugins=[])
    assert await session.events() == before


async def test_tool_filters_can_be_changed_later_for_client_tools_too(client: Client) -> None:
    session = await client.session(tools=[{"name": "mine"}, {"name": "other"}])
    await session.ask("options.update", availableTools=["view", "grep", "mine"], excludedTools=["grep"])
    assert await _tools(session) == ["view", "mine"]


async def test_client_that_answers_questions_can_switch_ask_user_off_and_on(client: Client) -> None:
    session = await client.session(requestUserInput=True, availableTools=["view", "ask_user"])
    await session.ask("options.update", askUserDisabled=True)
    assert await _tools(session) == ["view"]
    await session.ask("options.update", askUserDisabled=False)
    assert await _tools(session) == ["view", "ask_user"]


async def test_ask_user_stays_off_for_a_client_that_answers_no_questions(session: Session) -> None:
    await session.ask("options.update", askUserDisabled=False)
    assert "ask_user" not in await _tools(session)


async def test_streaming_can_be_switched_on_later(tmp_path: Path) -> None:
    async with desk_at(tmp_path, "One two three.") as desk:
        session = await desk.client().session()
        await session.ask("options.update", enableStreaming=True)
        await session.say("Count")
        pieces = [data["deltaContent"] for data in session.client.data("assistant.message_delta")]
        assert "".join(pieces) == "One two three."


async def test_missing_directory_is_refused_before_anything_changes(session: Session) -> None:
    with pytest.raises(Refused, match="The working directory nowhere does not exist"):
        await session.ask("options.update", workingDirectory="nowhere", model="second")
    assert await session.ask("model.getCurrent") == {"modelId": "first"}


async def test_tools_work_in_the_sessions_new_directory(tmp_path: Path) -> None:
    async with desk_at(tmp_path, ScriptedCall("view", {"path": "here.txt"}), "{last_tool_result}") as desk:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "here.txt").write_text("Found it.")
        session = await desk.client().session()
        await session.ask("permissions.setApproveAll", enabled=True)
        told = await session.ask("metadata.setWorkingDirectory", workingDirectory=str(elsewhere))
        assert told == {"workingDirectory": str(elsewhere)}
        assert "Found it." in await session.say("Look")
        assert await session.client.until("session.context_changed") == {"cwd": str(elsewhere)}


async def _tools(session: Session) -> list[str]:
    return [found["name"] for found in (await session.ask("tools.getCurrentMetadata"))["tools"]]
