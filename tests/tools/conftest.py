"""A working directory with a neighbour that is none of its business."""

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("hidden")
    work = tmp_path / "work"
    (work / "docs").mkdir(parents=True)
    (work / "a.txt").write_text("one\ntwo\nthree\n")
    (work / "to_secret").symlink_to(tmp_path / "secret.txt")
    (work / "to_parent").symlink_to(tmp_path)
    (work / "to_docs").symlink_to("docs")
    return work
