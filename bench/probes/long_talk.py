"""What a turn costs after 1,000 turns and many compactions, on SQLite."""

from bench import long_talk
from bench.place import Place
from holdfast.app import Runtime


async def measure(place: Place) -> dict[str, float]:
    model = long_talk.CountedModel()
    async with Runtime(database=place.folder / "talk.db", model=model) as runtime:
        session = await runtime.session("talk")
        found = await long_talk.measure(runtime, model, session, turns=place.size.talk_turns)
    return {f"long_talk_{name}": value for name, value in found.items()}
