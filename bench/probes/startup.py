"""How long it takes to import the package, and to be told what the command can do."""

import asyncio
import importlib.util
import sys
import time

from bench.place import Place

_IMPORT = "import time; started = time.perf_counter(); import holdfast; print(time.perf_counter() - started)"


async def measure(place: Place) -> dict[str, float]:
    await _said_by("-c", _IMPORT)
    figures = {"import": float(await _said_by("-c", _IMPORT)) * 1000}
    if importlib.util.find_spec("holdfast.cli.main") is not None:
        started = time.perf_counter()
        await _said_by("-m", "holdfast", "--help")
        figures["help"] = (time.perf_counter() - started) * 1000
    return figures


async def _said_by(*arguments: str) -> str:
    child = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    said, _ = await child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"python {' '.join(arguments)} ended with {child.returncode}")
    return said.decode()
