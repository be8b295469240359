"""The repository as a newcomer finds it: make's help, the generated page, the package that is built from it."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from holdfast import __version__

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "holdfast"


def output_of(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_make_alone_prints_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    printed = [line.split()[1] for line in output_of("make", "--no-print-directory").splitlines()]
    assert sorted(printed) == sorted(phony.split())
    assert {"run", "test", "check", "bench", "crash", "crash-control", "docs", "clean", "help"} <= set(printed)


def test_the_configuration_page_is_the_one_that_the_code_prints() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert output_of(sys.executable, "-m", "holdfast.config") == page, "run `make docs`"


def test_every_requirement_is_pinned() -> None:
    """The pins are exact, and name no place to get them from."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)] == []
    pinned = {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in pins}
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    required = re.findall(r'^ *"([A-Za-z0-9_.-]+)>=', pyproject, re.MULTILINE)
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in required} - pinned == set()


def test_importing_the_package_does_not_load_what_only_some_commands_use() -> None:
    loaded = output_of(sys.executable, "-c", "import sys, holdfast; print(*sys.modules)").split()
    assert {"aiohttp", "typer", "rich", "prompt_toolkit", "sqlite3"} & set(loaded) == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    output_of(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    sources = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("holdfast/")}
    assert packed == sources
    assert "holdfast/py.typed" in packed
    assert any(name.endswith(".sql") for name in packed)


def test_the_wheel_installs_into_a_new_environment_and_runs(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False, symlinks=True)
    python = tmp_path / "bin" / "python"
    offline = ("--no-index", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--quiet")
    output_of(sys.executable, "-m", "pip", "--python", python, "install", *offline, wheel)
    # Its requirements are taken from here; a .pth file does not bring in this checkout, which a nested one names.
    (site,) = tmp_path.glob("lib/python3*/site-packages")
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + os.linesep, encoding="utf-8")
    where = output_of(python, "-c", "import holdfast; print(holdfast.__file__)")
    assert where.startswith(str(tmp_path))
    assert __version__ in output_of(tmp_path / "bin" / "holdfast", "--version")
