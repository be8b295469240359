"""The real store with hooks: a test may delay or fail single calls, before or after they run."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from holdfast.app import Runtime
from holdfast.events.ids import Fence, Key
from holdfast.events.inbox import InboxItem
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Claim, Early, Lease, Outcome, ReleaseKind, Unit

Trouble = Callable[[Any], Awaitable[object]]


class TroubledStore(SqliteStore):
    """A `before` hook gets the argument of its call; an `after` hook gets the result, or else the argument."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.before: dict[str, Trouble] = {}
        self.after: dict[str, Trouble] = {}

    async def commit(self, unit: Unit) -> Outcome:
        await self._meet(self.before, "commit", unit)
        outcome = await super().commit(unit)
        await self._meet(self.after, "commit", unit)
        return outcome

    async def claim(
        self,
        *,
        limit: int,
        without_models: Collection[str] = (),
        fold_version: int | None = None,
        early: Early | None = None,
    ) -> list[Claim]:
        await self._meet(self.before, "claim", limit)
        claims = await super().claim(limit=limit, without_models=without_models, fold_version=fold_version, early=early)
        await self._meet(self.after, "claim", claims)
        return claims

    async def tails(self, keys: Sequence[Key]) -> dict[Key, tuple[Fence, int]]:
        found = await super().tails(keys)
        await self._meet(self.after, "tails", keys)
        return found

    async def waiting_items(self, key: Key) -> tuple[InboxItem, ...]:
        items = await super().waiting_items(key)
        await self._meet(self.after, "waiting_items", items)
        return items

    async def release(self, lease: Lease, *, seen_tail: int, how: ReleaseKind) -> bool:
        await self._meet(self.before, "release", lease)
        released = await super().release(lease, seen_tail=seen_tail, how=how)
        await self._meet(self.after, "release", lease)
        return released

    async def renew(self, *, ttl_seconds: float) -> bool:
        await self._meet(self.before, "renew", ttl_seconds)
        return await super().renew(ttl_seconds=ttl_seconds)

    async def _data_version(self) -> int:
        await self._meet(self.before, "data_version", None)
        return await super()._data_version()

    async def _meet(self, troubles: dict[str, Trouble], name: str, given: object) -> None:
        if name in troubles:
            await troubles[name](given)


def store_of(runtime: Runtime) -> TroubledStore:
    assert isinstance(runtime.store, TroubledStore)
    return runtime.store
