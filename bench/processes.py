"""The other processes: the models on one core, the measured process on another, and nothing else at work."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.place import Measured, Place, to_json

ROOT = Path(__file__).parent.parent

PATIENCE_SECONDS = 900.0
"""No run of a probe takes nearly as long; one that does hangs."""

PREPARING_SECONDS = 1_200.0
"""Something may have to be fetched."""


class ProbeFailed(Exception):
    """A measured process ended badly; the message is the end of what it said."""


def cores() -> tuple[int, int] | None:
    """One core for what is measured and another for the models; None where processes can't be pinned."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[-1]) if len(usable) > 1 else None


@contextmanager
def model(kind: str, core: int | None) -> Iterator[str]:
    """A model server; gives its base URL."""
    command = [sys.executable, "-m", "bench.models", kind, *(() if core is None else (str(core),))]
    with subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            if not url:
                raise ProbeFailed(f"the {kind} model did not start")
            yield url
        finally:
            server.terminate()


def measure(probe: str, place: Place) -> Measured:
    said = _run(probe, "measure", place, seconds=PATIENCE_SECONDS)
    return msgspec.json.decode(said.splitlines()[-1], type=Measured)


def prepare(probe: str, place: Place) -> None:
    _run(probe, "prepare", place, seconds=PREPARING_SECONDS)


def _run(probe: str, verb: str, place: Place, *, seconds: float) -> bytes:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.measure", probe, verb],
            cwd=ROOT,
            env=_environment(),
            input=to_json(place),
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ProbeFailed(f"{probe}: nothing came within {seconds:.0f} s") from error
    if done.returncode != 0:
        raise ProbeFailed(f"{probe}: {done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout


def _environment() -> dict[str, str]:
    """Nobody's own settings decide what is measured; the package may be installed or just lie beside this one."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    paths = [str(ROOT / "src"), *filter(None, [plain.get("PYTHONPATH")])]
    return {**plain, "PYTHONPATH": os.pathsep.join(paths)}
