import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.tasks.world import Machine, Machines

if sys.platform != "linux":
    pytest.skip("these tests look into /proc", allow_module_level=True)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
async def machines(tmp_path: Path) -> AsyncIterator[Machines]:
    machines = Machines(tmp_path)
    yield machines
    await machines.close()


@pytest.fixture
async def machine(machines: Machines) -> Machine:
    return await machines.open()
