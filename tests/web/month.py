"""A month of model calls in a database, for the pictures of usage."""

import random
from pathlib import Path

from holdfast import Runtime
from holdfast.events.ids import Key, MessageId, Owner, SessionId
from holdfast.models.demo import demo_model
from holdfast.server.operations import SessionOptions
from holdfast.store.clock import SystemClock
from holdfast.store.store import Committed, LedgerEntry, Unit

DAY_MS = 86_400_000
OWNERS = ("ada", "bob", "carol", "dave", "eve", "frank", "grace", "heidi", "ivan", "judy-with-a-long-name@example.com")
MODELS = ("anthropic/claude-opus-5-5", "openai/gpt-5.1", "openrouter/deepseek/deepseek-v3.2", "openai/gpt-5-mini")


async def write_month(database: Path) -> None:
    """Calls of ten owners on four models: fewer on weekends, dearer towards the end, always the same but for dates."""
    chance = random.Random(7)
    async with Runtime(database=database, model=demo_model(), work=False) as runtime:
        now = SystemClock().now_ms()
        for number, name in enumerate(OWNERS):
            key = Key(Owner(name), SessionId("work"))
            await runtime.operations.create_if_missing(key.owner, SessionOptions(model="demo"), key.session)
            entries = []
            for ago in range(30):
                is_weekend = (now // DAY_MS - ago + 3) % 7 >= 5
                if ago and chance.random() < (0.7 if is_weekend else 0.15):
                    continue
                for call in range(chance.randint(1, 3)):
                    entries.append(_entry(chance, number, f"{ago}-{call}", now - ago * DAY_MS, growth=1 - ago / 45))
            assert isinstance(await runtime.store.commit(Unit(key=key, fence=None, ledger=tuple(entries))), Committed)


def _entry(chance: random.Random, owner: int, name: str, time: int, *, growth: float) -> LedgerEntry:
    tokens = chance.randint(5_000, 90_000)
    return LedgerEntry(
        message_id=MessageId(name),
        attempt=1,
        model=MODELS[min(chance.randint(0, 4), chance.randint(0, 3))],
        input_tokens=tokens,
        output_tokens=tokens // 20,
        cache_read_tokens=tokens * chance.randint(0, 9) // 10,
        cost_microdollars=None if chance.random() < 0.03 else int(tokens * growth * 14 / (1 + owner / 3)),
        time=time,
    )
