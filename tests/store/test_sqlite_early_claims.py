"""A claim right behind a put: told while it is committed, so that what is written first for it is in the same
transaction. And what becomes of that when the transaction fails."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from holdfast.events.ids import MessageId
from holdfast.events.inbox import Message
from holdfast.models.scripted import Reply
from holdfast.session.fold import FOLD_VERSION
from holdfast.store import crash_points
from holdfast.store.sqlite import writer
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Accepted, Claim, Committed, FenceMissed, Outcome, Refused, Unit
from holdfast.testing.store_conformance.words import KEY, MANY, create, info
from tests.faults.world import endings_of, model_said, people_said, runtime_on, scripted

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 30.0


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    monkeypatch.setattr(writer, "FOLLOW_SECONDS", PATIENCE_SECONDS)
    opened = await SqliteStore.open(tmp_path / "holdfast.db", node="here")
    await opened.renew(ttl_seconds=PATIENCE_SECONDS)
    await create(opened)
    yield opened
    await opened.close()


@pytest.fixture
def visit() -> Iterator[Callable[[Callable[[str], None]], None]]:
    yield crash_points.install
    crash_points.install(None)


def fail_at_claim(failures: Iterator[Exception], point: str) -> None:
    """One after the other, and then no more."""
    if point == "claim:sessions:before" and (failure := next(failures, None)):
        raise failure


class Eager:
    """Whoever writes as soon as it is told of a claim."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.told: list[Claim] = []
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def early(self, claims: list[Claim]) -> None:
        self.told = claims
        lease = claims[0].lease
        unit = Unit(key=lease.key, fence=lease.fence, events=(info("the first thing"),))
        self.outcome = asyncio.ensure_future(self._store.commit(unit))


async def put_and_claim(store: SqliteStore, eager: Eager) -> tuple[Accepted | Refused, list[Claim] | BaseException]:
    message = Message(message_id=MessageId("m"), text="hello")
    putting = store.put(KEY, message, item_key="message:m", queue_limit=10)
    claiming = store.claim(limit=MANY, fold_version=FOLD_VERSION, early=eager.early)
    accepted, claims = await asyncio.gather(putting, claiming, return_exceptions=True)
    assert not isinstance(accepted, BaseException)
    return accepted, claims


async def test_what_is_written_first_for_a_claim_behind_a_put_is_in_the_same_transaction(
    store: SqliteStore, visit: Callable[[Callable[[str], None]], None]
) -> None:
    points: list[str] = []
    eager = Eager(store)
    visit(points.append)
    accepted, claims = await put_and_claim(store, eager)
    assert isinstance(accepted, Accepted)
    assert claims == eager.told
    assert isinstance(await eager.outcome, Committed)
    parts = ["put:message", "claim:sessions", "commit:session.info"]
    assert points == [f"{part}:before" for part in parts] + [f"{part}:after" for part in parts]


async def test_a_claim_that_was_told_early_and_failed_lets_nothing_be_written_for_it(
    store: SqliteStore, visit: Callable[[Callable[[str], None]], None]
) -> None:
    failures = iter([OSError("the disk does not answer")])
    eager = Eager(store)
    visit(functools.partial(fail_at_claim, failures))
    accepted, claims = await put_and_claim(store, eager)
    assert isinstance(claims, OSError)
    assert isinstance(accepted, Accepted), "the message is not at fault, and was written by itself"
    assert isinstance(await eager.outcome, FenceMissed)
    (again,) = await store.claim(limit=MANY, fold_version=FOLD_VERSION)
    assert again.lease.fence != eager.told[0].lease.fence, "what was told is not given out again"


async def test_whoever_writes_nothing_holds_up_nobody(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FOLLOW_SECONDS", 0.0)
    told: list[Claim] = []
    putting = store.put(KEY, Message(message_id=MessageId("m"), text="hello"), item_key="message:m", queue_limit=10)
    claims = await store.claim(limit=MANY, fold_version=FOLD_VERSION, early=told.extend)
    assert isinstance(await putting, Accepted)
    assert told == claims
    assert len(claims) == 1


async def test_a_turn_whose_claim_was_told_early_and_failed_is_run_once_by_the_next(
    tmp_path: Path, visit: Callable[[Callable[[str], None]], None]
) -> None:
    failures = iter([OSError("the disk does not answer")])
    model = scripted(Reply(text="Here."))
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime:
        session = await runtime.session()
        visit(functools.partial(fail_at_claim, failures))
        result = await session.run("Are you there?")
        assert result.text == "Here."
        assert next(failures, None) is None, "it did fail"
        assert await people_said(session) == ["Are you there?"]
        assert await model_said(session) == ["Here."]
        assert await endings_of(session) == ["completed"]
