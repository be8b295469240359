"""Hints within one process."""

import asyncio
from collections import deque
from collections.abc import Callable

from holdfast.events.ids import Key
from holdfast.live.live import Changed, Hint, Listener, Lost

MAX_HINTS = 1_000
"""How many hints a slow subscriber may fall behind; beyond that its queue is replaced by `Lost`."""


class LocalSubscription:
    """The hints of one session for one subscriber of this process."""

    def __init__(self, key: Key, closed: Callable[["LocalSubscription"], None]) -> None:
        self.key = key
        self._closed = closed
        self._hints: deque[Hint] = deque()
        self._arrived: asyncio.Future[None] | None = None

    def offer(self, hint: Hint) -> None:
        if len(self._hints) >= MAX_HINTS:
            self._hints.clear()
            hint = Lost()
        self._hints.append(hint)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def next(self) -> Hint:
        while not self._hints:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        return self._hints.popleft()

    def close(self) -> None:
        self._closed(self)


class LocalLive:
    """Delivers hints to the subscribers of the same process, in the order of publication."""

    def __init__(self) -> None:
        self._subscriptions: dict[Key, dict[LocalSubscription, None]] = {}
        """Ordered by subscription, so that the order of delivery does not depend on memory addresses."""
        self._listeners: list[Listener] = []
        self._watchers: list[Callable[[Key, Hint], None]] = []

    def publish(self, key: Key, hint: Hint) -> None:
        self.offer(key, hint)
        for watcher in self._watchers:
            watcher(key, hint)
        if isinstance(hint, Changed) and not hint.promoted:
            self.wake(key, hint.tail)

    def offer(self, key: Key, hint: Hint) -> None:
        """Deliver a hint, published here or in another process, to the session's subscribers."""
        for subscription in self._subscriptions.get(key, ()):
            subscription.offer(hint)

    def wake(self, key: Key | None, tail: int | None) -> None:
        """Deliver a wake-up, from here or from another process, to the listeners."""
        for listener in tuple(self._listeners):
            listener(key, tail)

    def subscribe(self, key: Key) -> LocalSubscription:
        subscription = LocalSubscription(key, self._forget)
        self._subscriptions.setdefault(key, {})[subscription] = None
        return subscription

    def on_change(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def watch(self, watcher: Callable[[Key, Hint], None]) -> Callable[[], None]:
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def announce(self) -> None:
        self.wake(None, None)

    def others_wrote(self) -> bool:
        self.lose_all()
        return True

    def lose_all(self) -> None:
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.offer(Lost())
        self.announce()

    def listening(self) -> bool:
        return bool(self._subscriptions)

    def keys(self) -> tuple[Key, ...]:
        """The sessions that have subscribers."""
        return tuple(self._subscriptions)

    def has_subscribers(self, key: Key) -> bool:
        return key in self._subscriptions

    def _forget(self, subscription: LocalSubscription) -> None:
        remaining = self._subscriptions.get(subscription.key, {})
        remaining.pop(subscription, None)
        if not remaining:
            self._subscriptions.pop(subscription.key, None)
