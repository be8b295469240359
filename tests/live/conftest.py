"""How failures are met sooner, and a database of either kind."""

from pathlib import Path

import pytest

from holdfast.live import redis


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is gone is tried again soon. One that is slow is given time: so is this machine, now and then."""
    monkeypatch.setattr(redis, "ANSWER_SECONDS", 30.0)
    monkeypatch.setattr(redis, "PING_SECONDS", 0.05)
    monkeypatch.setattr(redis, "LONGEST_PAUSE_SECONDS", 0.1)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of one that is new, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url
