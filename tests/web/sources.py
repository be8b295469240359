"""The page's sources with the packages that they are built with, installed once for each lock file and kept."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.wire.copilot.test_node_client import NO_REGISTRY, NODE, NPM, keep, run

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "web"
BUILT = ROOT / "src" / "holdfast" / "web" / "built"

__all__ = ["BUILT", "NODE", "SOURCES", "copied", "packages", "run"]


async def packages(cache: Path) -> Path:
    """The folder `node_modules`."""
    lock = (SOURCES / "package-lock.json").read_bytes()
    folder = cache / hashlib.sha256(lock).hexdigest()[:16]
    if not folder.exists():
        await _install(cache, folder)
    return folder / "node_modules"


async def _install(cache: Path, folder: Path) -> None:
    """All of it or none of it: another process may be at the same."""
    aside = Path(tempfile.mkdtemp(dir=cache))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SOURCES / name, aside)
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
    code, said = await run(*NPM, "ci", *options, cwd=aside)
    causes = [word for word in NO_REGISTRY if word in said]
    if code != 0 and causes:
        shutil.rmtree(aside)
        pytest.skip(f"THE PAGE'S SOURCES ARE NOT TESTED: no package registry can be reached from here ({causes[0]})")
    assert code == 0, said
    keep(aside, folder)


@contextmanager
def copied(modules: Path) -> Iterator[Path]:
    """The sources and what is built of them, with the packages beside them as a newcomer would have them: the names of
    built files depend on where packages are."""
    with tempfile.TemporaryDirectory(dir=modules.parent.parent) as name:
        folder = Path(name)
        shutil.copytree(SOURCES, folder / "web", ignore=shutil.ignore_patterns("node_modules"))
        shutil.copytree(BUILT, folder / "src" / "holdfast" / "web" / "built")
        shutil.copytree(modules, folder / "web" / "node_modules", copy_function=os.link, symlinks=True)
        yield folder / "web"
