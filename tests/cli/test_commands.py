"""The command line itself: help for everything, quick to start, and the commands that look after the rest."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from holdfast import __version__
from holdfast.cli import commands
from holdfast.cli.commands import app
from holdfast.cli.doctor import CHECKS
from holdfast.config import Config
from holdfast.models.demo import BUILD_STEPS
from tests.cli.processes import Place
from tests.cli.scripts import model
from tests.models.raw_server import RawServer, http

COMMANDS = (
    "chat",
    "run",
    "requests",
    "approve",
    "deny",
    "answer",
    "model-server",
    "doctor",
    "story",
    "serve",
    "worker",
    "keys",
    "keys create",
    "keys list",
    "keys revoke",
    "whoami",
    "audit",
    "files",
    "files add",
    "files list",
    "files get",
    "files keep",
    "files delete",
    "permissions",
    "permissions list",
    "permissions revoke",
    "webhooks",
    "webhooks list",
    "webhooks create",
    "webhooks change",
    "webhooks delete",
    "webhooks rotate",
    "webhooks test",
    "webhooks deliveries",
    "webhooks send",
    "sessions",
    "sessions list",
    "sessions show",
    "sessions delete",
    "sessions export",
    "sessions import",
    "sessions continue",
    "usage",
    "budgets",
    "budgets list",
    "budgets show",
    "budgets set",
    "budgets reset",
    "tasks",
    "tasks list",
    "tasks show",
    "tasks tail",
    "tasks kill",
    "db",
    "db backup",
    "db migrate",
    "db status",
    "cluster",
    "cluster status",
)


def holdfast(*words: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, *python, "-m", "holdfast", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="holdfast")
    assert done.exit_code == 0
    assert f"Usage: holdfast {command} " in done.output
    assert f"Example: holdfast {command.split()[0]}" in done.output


def test_the_list_of_commands_above_is_whole() -> None:
    listed = holdfast("--help").stdout.split("Commands:")[1].split("\n\n")[0]
    assert {line.split()[0] for line in listed.splitlines() if line.strip()} == {
        name for name in COMMANDS if " " not in name
    }


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_the_table_repeats_the_first_sentence_of_each_help(command: str) -> None:
    assert commands.load_command(command).get_short_help_str(1000) == commands.COMMANDS[command][1]


def test_help_and_version_import_next_to_nothing() -> None:
    imported = holdfast("--help", python=("-X", "importtime")).stderr
    for heavy in ("aiohttp", "prompt_toolkit", "rich.", "sqlite3", "msgspec", "asyncio"):
        assert f" {heavy}" not in imported, heavy
    version = holdfast("--version", python=("-X", "importtime"))
    assert version.stdout == f"holdfast {__version__}\n"
    assert " typer" not in version.stderr


async def test_a_doctor_finds_everything_well_and_says_what_is_not(place: Place) -> None:
    async with model(place):
        well = await place.run("doctor")
        assert well.code == 0, well.out
        assert [line[0] for line in well.out.splitlines()] == ["✓"] * len(CHECKS)
    gone = await place.run("doctor", "--json")
    assert gone.code == 1
    findings = {finding["name"]: finding for finding in map(json.loads, gone.out.splitlines())}
    assert [name for name, finding in findings.items() if not finding["ok"]] == ["Model"]
    assert findings["Model"]["advice"]
    place.options = ()
    place.data.chmod(0o777)
    open_to_all = await place.run("doctor")
    assert open_to_all.code == 1
    assert "✗ Folder" in open_to_all.out
    assert "chmod" in open_to_all.out


async def test_doctor_says_whether_the_endpoint_of_copilot_offers_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(data_dir=tmp_path, database=f"sqlite:///{tmp_path}/holdfast.db", model="copilot/x")
    monkeypatch.setenv("COPILOT_API_URL", "http://127.0.0.1:9")
    unreachable = await CHECKS["Model"](config)
    assert not unreachable.ok
    assert unreachable.found.startswith("copilot/x: ")
    assert "COPILOT_API_URL" in unreachable.advice
    async with RawServer([http(b'[{"id": "x"}]', content_type="application/json")]) as server:
        monkeypatch.setenv("COPILOT_API_URL", server.url)
        offered = await CHECKS["Model"](config)
        missing = await CHECKS["Model"](msgspec.structs.replace(config, model="copilot/y"))
    assert (offered.ok, offered.found) == (True, "copilot/x: the endpoint in COPILOT_API_URL offers it")
    assert not missing.ok
    assert missing.found.endswith("answers, but does not offer this model.")


async def test_the_model_server_says_where_it_is_and_serves_a_script(place: Place, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"rules": [{"replies": [{"text": "From a file."}]}]}')
    command = [sys.executable, "-m", "holdfast", "model-server", "--script", str(script)]
    server = await asyncio.create_subprocess_exec(*command, env=place.environ, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    url = (await server.stdout.readline()).decode().split()[-1]
    for path in ("/chat/completions", "/messages", "/responses"):
        assert (await server.stdout.readline()).decode().endswith(f"POST {url}{path}\n")
    place.options = ("--model", "openai/x", "--model-base-url", url)
    try:
        done = await place.run("run", "hello")
    finally:
        server.send_signal(signal.SIGTERM)
    assert await server.wait() == 0
    assert done.out == "From a file.\n"
    bad = holdfast("model-server", "--script", str(Path(__file__)))
    assert bad.returncode == 2
    assert "[script_invalid]" in bad.stderr


def test_the_story_holds() -> None:
    done = holdfast("story")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kill -9") == 2
    assert done.stdout.count("✓") == 3
    assert "(interrupted)" in done.stdout
    assert float(done.stdout.splitlines()[-1].split()[0]) < 30


def test_the_story_of_the_build_holds() -> None:
    done = holdfast("story", "build")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kill -9") == 2, "the one that is done, and the one that is counted at the end"
    assert "exit code 0" in done.stdout
    assert f"built {BUILD_STEPS} steps" in done.stdout
    assert done.stdout.splitlines()[-1].split(" s  ")[1].startswith("✓")


def test_a_story_that_there_is_not_is_named() -> None:
    done = holdfast("story", "nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr
