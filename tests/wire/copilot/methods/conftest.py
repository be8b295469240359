"""A runtime whose client approves everything, and that client."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.wire.copilot.methods.world import Client, Desk, Session, desk_at


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_at(tmp_path) as found:
        yield found


@pytest.fixture
async def client(desk: Desk) -> Client:
    return desk.client()


@pytest.fixture
async def session(client: Client) -> Session:
    return await client.session()
