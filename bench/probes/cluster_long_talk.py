"""What a turn costs after 1,000 turns and many compactions, on PostgreSQL."""

from bench import cluster, long_talk
from bench.place import Place
from holdfast.app import Runtime
from holdfast.config import load


async def measure(place: Place) -> dict[str, float]:
    model = long_talk.CountedModel()
    async with (
        cluster.database(place, "talk") as url,
        Runtime(config=load({"database": url, "data_dir": place.folder}, {}), model=model) as runtime,
    ):
        session = await runtime.session("talk")
        found = await long_talk.measure(runtime, model, session, turns=place.size.talk_turns)
    return {f"cluster_long_talk_{name}": value for name, value in found.items()}
