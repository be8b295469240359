"""A place of its own for each test of the command line."""

from pathlib import Path

import pytest

from tests.cli.processes import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
