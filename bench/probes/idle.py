"""The memory of a process that has nothing to do: a runtime that is open, with its worker, and no session."""

from bench.memory import megabytes
from bench.place import Place
from holdfast.app import Runtime


async def measure(place: Place) -> dict[str, float]:
    async with Runtime(database=place.folder / "idle.db", model="demo") as runtime:
        await runtime.operations.sessions(runtime.owner)
        return {"idle_memory": megabytes()}
