"""Fixtures: short reconnection times, and a new database of each kind."""

from pathlib import Path

import pytest

from holdfast.live import redis


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reconnect to a dead Redis soon, but give a slow one time: the test machine is slow at times."""
    monkeypatch.setattr(redis, "ANSWER_SECONDS", 30.0)
    monkeypatch.setattr(redis, "PING_SECONDS", 0.05)
    monkeypatch.setattr(redis, "LONGEST_PAUSE_SECONDS", 0.1)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url
