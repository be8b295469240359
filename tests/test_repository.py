"""The repository as a newcomer finds it: make's help, the generated page, the package that is built from it."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
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


def test_the_configuration_page_matches_the_code() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert output_of(sys.executable, "-m", "holdfast.config") == page, "run `make docs`"


PIN = re.compile(r'(?P<name>[A-Za-z0-9._-]+)==[0-9][0-9a-z.]*(?: ; python_full_version < "[0-9.]+")?')


def pins() -> dict[str, dict[str, int]]:
    """The groups of pins, with the number of hashes of each pin."""
    groups: dict[str, dict[str, int]] = {}
    for block in (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n# == ")[1:]:
        title, _, rest = block.partition("\n")
        found = groups.setdefault(title.split(" :")[0], {})
        for line in filter(None, rest.replace(" \\\n    ", "\t").splitlines()):
            pin, *hashes = line.split("\t")
            named = PIN.fullmatch(pin)
            assert named is not None, pin
            assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", each) for each in hashes), pin
            found[re.sub(r"[-_.]+", "-", named["name"]).lower()] = len(set(hashes))
    return groups


def required(*words: str) -> set[str]:
    return {re.sub(r"[-_.]+", "-", re.split("[<>=]", word)[0]).lower() for word in words}


def test_every_requirement_is_pinned_with_hashes() -> None:
    """The pins are exact, name no package index, and each has the hashes of its files."""
    groups = pins()
    assert list(groups) == ["run", "extras", "build", "test"]
    everything = [name for found in groups.values() for name in found]
    assert len(everything) == len(set(everything))
    assert [name for found in groups.values() for name, hashes in found.items() if not hashes] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    run = set(groups["run"])
    assert required(*project["project"]["dependencies"]) <= run
    for name in ("secrets", "jwt", "buckets", "cluster", "otel"):
        assert required(*extras[name]) <= run | set(groups["extras"])
    assert required(*project["build-system"]["requires"]) <= set(groups["build"])
    assert required(*extras["test"]) <= set(everything)


def test_every_installed_package_has_a_pinned_hash(tmp_path: Path) -> None:
    """pip agrees that the pins are complete, so that it fetches no package without a hash."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    run = tmp_path / "pins.txt"
    run.write_text(text.partition("# == run")[2].partition("# == extras")[0].partition("\n")[2])
    install = ["install", "--quiet", "--disable-pip-version-check", "--dry-run", "--no-index", "--require-hashes"]
    output_of(sys.executable, "-m", "pip", *install, "-r", run)


def test_importing_the_package_loads_no_library_that_only_some_commands_use() -> None:
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
    assert {name.split("/")[2] for name in packed if name.startswith("holdfast/testing/")} == {
        *("__init__.py", "clock.py", "store_conformance")
    }, "what proves Holdfast itself belongs in proof/"
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
