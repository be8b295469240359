"""Which variables' values are kept out of results, and that nothing else is."""

from pathlib import Path

import pytest

from holdfast.events.tool import ToolCompleted
from holdfast.models.scripted import Reply
from holdfast.tools.environment import is_secret
from tests.faults.world import bodies_of, call, patience, runtime_on, scripted
from tests.tools.shells import decoded

pytestmark = pytest.mark.anyio

SECRETS = """
    HOLDFAST_MODEL_API_KEY HOLDFAST_SECRET_KEY HOLDFAST_DATABASE HOLDFAST_REDIS COPILOT_SDK_AUTH_TOKEN
    COPILOT_CONNECTION_TOKEN COPILOT_GITHUB_TOKEN OPENAI_API_KEY OPENROUTER_API_KEY ANTHROPIC_API_KEY
    ANTHROPIC_AUTH_TOKEN GH_TOKEN GITHUB_TOKEN GITHUB_COPILOT_API_TOKEN
"""

HARMLESS = "PATH HOME LANG HOLDFAST_DATA_DIR HOLDFAST_MODEL HOLDFAST_HOST HOLDFAST_PORT COPILOT_HOME KEY API_KEYS"


@pytest.mark.parametrize("name", SECRETS.split())
def test_keys_and_tokens_are_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", HARMLESS.split())
def test_other_settings_are_none(name: str) -> None:
    assert not is_secret(name)


async def test_a_result_names_files_though_a_setting_names_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-that-is-real")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "leak").write_text("a-key-that-is-real\n")
    model = scripted(
        call("exec", command="cat leak"), call("exec", command="true", run_in_background=True), Reply(text="Done.")
    )
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime, patience():
        session = await runtime.session(working_directory=str(tmp_path / "work"), allow=("shell",))
        await session.run("Go")
        leak, started = [decoded(body.content) for body in await bodies_of(session, ToolCompleted)]
        assert leak["stdout"] == "[redacted]\n"
        assert started["output_file"].startswith(str(tmp_path))
