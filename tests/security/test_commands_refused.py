"""A server for everybody who has a key runs no commands without a sandbox, unless it was told to in words."""

from pathlib import Path

import pytest

from holdfast import Runtime
from holdfast.commands.isolation import REFUSED
from holdfast.config import load
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.store.survey import Role
from tests.http.test_identity import made_key
from tests.http.world import Place, code_of

TOOLS = ("exec", "bash")
ALLOW = {"HOLDFAST_COMMANDS_WITHOUT_SANDBOX": "allow"}


def script(tool: str) -> ScriptedModel:
    call = ScriptedCall(tool, {"command": "touch ran", "description": "Leave a trace"})
    return ScriptedModel(Script((Rule(replies=(Reply(tool_calls=(call,)), Reply(text="{last_tool_result}"))),)))


async def told(folder: Path, tool: str, *, role: Role, environ: dict[str, str]) -> str:
    """The result for the model of a command that its session is allowed to run."""
    config = load({"data_dir": str(folder / "data")}, environ)
    async with Runtime(config=config, model=script(tool), role=role) as runtime:
        session = await runtime.session(working_directory=str(folder), tools=TOOLS, allow=("shell",))
        return (await session.run("Do it")).text


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("role", ["serve", "worker"])
async def test_a_command_is_refused_with_what_to_do_and_does_not_run(tmp_path: Path, role: Role, tool: str) -> None:
    assert REFUSED in await told(tmp_path, tool, role=role, environ={"HOLDFAST_AUTH": "keys"})
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("role", "environ"),
    [("serve", {"HOLDFAST_AUTH": "keys", **ALLOW}), ("serve", {}), ("command", {"HOLDFAST_AUTH": "keys"})],
)
async def test_commands_run_without_a_sandbox_if_allowed_by_setting_or_for_one_user(
    tmp_path: Path, role: Role, environ: dict[str, str]
) -> None:
    assert REFUSED not in await told(tmp_path, "exec", role=role, environ=environ)
    assert (tmp_path / "ran").exists()


async def test_a_session_is_not_made_with_them_and_does_not_get_them(tmp_path: Path) -> None:
    place = Place(tmp_path)
    key = await made_key(place, "root", "root", "admin")
    async with place.serve("--auth", "keys", HOLDFAST_USER_TOOLS="view,exec") as server, server.client(key) as root:
        for name in (*TOOLS, "kill_task"):
            refused = await root.post("/v1/sessions", json={"tools": ["view", name]})
            assert (refused.status_code, code_of(refused)) == (403, "commands_refused")
            assert refused.json()["error"]["message"] == REFUSED
        settings = (await root.get(f"/v1/sessions/{await root.make()}")).json()["settings"]
        assert "view" in settings["tools"]
        assert not {*TOOLS, "kill_task"} & set(settings["tools"])
