"""A wrong key costs the same work with a known id as with an unknown one, so that the time reveals nothing."""

from pathlib import Path
from typing import Any

from holdfast.server.http.keys import TRUST_SECONDS, KeyRing
from holdfast.store.keys import KeyRow
from holdfast.store.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock


class Observed(SqliteStore):
    """Notes what is asked about keys, and what comes back."""

    asked: list[tuple[str, bool]]

    async def valid_key(self, key_id: str, digest: bytes) -> KeyRow | None:
        found = await super().valid_key(key_id, digest)
        self.asked.append(("valid_key", found is not None))
        return found

    async def keys(self, key_id: str | None = None) -> tuple[KeyRow, ...]:
        found = await super().keys(key_id)
        self.asked.append(("keys", bool(found)))
        return found


def other(secret: str) -> str:
    return secret[:-1] + ("A" if secret[-1] != "A" else "B")


async def test_the_store_is_asked_the_same_for_known_and_unknown_keys(tmp_path: Path) -> None:
    store, clock = await Observed.open(tmp_path / "holdfast.db", node="here"), ManualClock()
    store.asked = []
    ring = KeyRing(store, clock)
    known: Any = await ring.create(name="known", role="user", owner="ada")
    revoked: Any = await ring.create(name="revoked", role="user", owner="ada")
    assert await ring.identify(revoked.key) is not None
    await ring.revoke(revoked.row.key_id)
    work = {}
    for is_used in (False, True):
        if is_used:
            assert await ring.identify(known.key) is not None, "its owner uses it at this very moment"
        for what, bearer in (
            ("an unknown id", f"hf_{'0' * 12}_{known.key[16:]}"),
            ("a known id", other(known.key)),
            ("a revoked key", revoked.key),
            ("a revoked id", other(revoked.key)),
        ):
            store.asked.clear()
            assert await ring.identify(bearer) is None
            work[what, is_used] = tuple(store.asked)
    assert set(work.values()) == {(("valid_key", False),)}
    await store.close()


async def test_a_key_is_trusted_for_a_moment_and_then_looked_up_again(tmp_path: Path) -> None:
    store, clock = await Observed.open(tmp_path / "holdfast.db", node="here"), ManualClock()
    store.asked = []
    ring, elsewhere = KeyRing(store, clock), KeyRing(store, clock)
    made = await ring.create(name="known", role="user", owner="ada")
    identity = await ring.identify(made.key)
    assert identity is not None
    assert await ring.identify(made.key) == identity
    assert store.asked == [("valid_key", True)]
    await elsewhere.revoke(made.row.key_id)
    assert not await ring.is_valid(identity), "who is under way is looked up each time"
    await clock.advance(TRUST_SECONDS)
    assert await ring.identify(made.key) is None
    await store.close()
