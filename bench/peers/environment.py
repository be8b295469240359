"""The environment that the peers run in: made once, by pip, with the versions that are written down here.

Where packages come from is pip's business: whatever it is told by its own settings.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
REQUIREMENTS = FOLDER / "requirements.txt"
CONSTRAINTS = FOLDER / "constraints.txt"

INSTALL_SECONDS = 900.0
"""It takes half a minute where packages are near."""


class PeersMissing(Exception):
    """They can't be installed here; the message is the end of what was said about it."""


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def install(folder: Path) -> None:
    """Have the peers there. What an earlier run left is used if it is whole and has these versions."""
    kept = folder / "installed"
    if kept.is_file() and kept.read_text() == _wanted():
        return
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder))
    pip = (sys.executable, "-m", "pip", "--python", str(python_of(folder)), "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", "--requirement", str(REQUIREMENTS), "--constraint", str(CONSTRAINTS))
    _run(str(python_of(folder)), "-c", "import agno.os, agno.db.sqlite, fastapi, pydantic_ai.models.openai, uvloop")
    kept.write_text(_wanted())


def environ() -> dict[str, str]:
    """Nothing of ours can be imported there, and nobody is told that it was started."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOLDFAST_"))}
    return {**plain, "AGNO_TELEMETRY": "false"}


def _wanted() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes() + CONSTRAINTS.read_bytes() + sys.version.encode()).hexdigest()


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, env=environ(), capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PeersMissing(f"not installed within {INSTALL_SECONDS:.0f} s") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
        raise PeersMissing(" ".join(lines[-3:]) or f"{command[1:3]} ended with {done.returncode}")
