"""The examples of docs/testing.md, run as their reader would run them, and shown as they are."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "testing" / "test_my_agent.py"


def test_the_examples_of_the_testing_page_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(EXAMPLE)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert "3 passed" in ended.stdout


def test_the_page_shows_the_example_that_is_run() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    source = EXAMPLE.read_text(encoding="utf-8")
    script = source[source.index("SCRIPT = ") : source.index("async def test_the_session")].strip()
    shown = script.replace("(tmp_path: Path) -> None", "(tmp_path)")
    assert shown in page
