import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.commands.commands import Commands
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


@pytest.fixture
async def commands(root: Path) -> AsyncIterator[Commands]:
    async with Commands(root, settings=SETTINGS) as commands:
        yield commands
