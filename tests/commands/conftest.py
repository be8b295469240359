import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.commands.commands import Commands
from tests.commands.sandboxes import Sandbox, why_not
from tests.commands.world import SETTINGS, is_running, supervisor_pid, until

if sys.platform != "linux":
    pytest.skip("these tests look into /proc", allow_module_level=True)


@pytest.fixture
async def root(tmp_path: Path) -> AsyncIterator[Path]:
    """A data directory. In the end nothing that was started in it may live."""
    root = tmp_path / "commands"
    yield root
    if not root.exists():
        return
    async with Commands(root, settings=SETTINGS) as commands:
        for status in await commands.listed():
            await commands.kill(status.key, 0)
        assert (root / "supervisor.log").read_text() == ""
    pid = supervisor_pid(root)
    os.kill(pid, signal.SIGTERM)
    await until(lambda: not is_running(pid))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where no sandbox can be made, one test says so, and the others that need one are not even counted."""
    confined = [item for item in items if "sandbox" in getattr(item, "fixturenames", ())]
    if confined and (why := why_not()):
        items[:] = [item for item in items if item not in confined[1:]]
        confined[0].add_marker(pytest.mark.skip(reason=f"THE SANDBOX IS NOT TESTED: {why}"))


@pytest.fixture
def sandbox(tmp_path: Path, root: Path) -> Sandbox:
    return Sandbox(tmp_path, root)


@pytest.fixture
async def commands(root: Path) -> AsyncIterator[Commands]:
    async with Commands(root, settings=SETTINGS) as commands:
        yield commands
