"""A claim right after a put is announced while it is being committed, so that the first write under it shares the
transaction. These tests also cover the failure of that transaction."""

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
from holdfast.store.store import Accepted, Claim, Committed, FenceMissed, Outcome, Refused, Snapshot, Unit
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
    """Raise one failure at each claim, until none is left."""
    if point == "claim:sessions:before" and (failure := next(failures, None)):
        raise failure


class EagerHolder:
    """A holder that writes as soon as a claim is announced to it."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.announced: list[Claim] = []
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def early(self, claims: list[Claim]) -> None:
        self.announced = claims
        lease = claims[0].lease
        unit = Unit(key=lease.key, fence=lease.fence, events=(info("the first thing"),))
        self.outcome = asyncio.ensure_future(self._store.commit(unit))


async def put_and_claim(
    store: SqliteStore, eager: EagerHolder
) -> tuple[Accepted | Refused, list[Claim] | BaseException]:
    message = Message(message_id=MessageId("m"), text="hello")
    put = store.put(KEY, message, item_key="message:m", queue_limit=10)
    claim = store.claim(limit=MANY, fold_version=FOLD_VERSION, early=eager.early)
    accepted, claims = await asyncio.gather(put, claim, return_exceptions=True)
    assert not isinstance(accepted, BaseException)
    return accepted, claims


async def test_first_write_under_an_early_claim_shares_the_transaction_of_its_put(
    store: SqliteStore, visit: Callable[[Callable[[str], None]], None]
) -> None:
    points: list[str] = []
    eager = EagerHolder(store)
    visit(points.append)
    accepted, claims = await put_and_claim(store, eager)
    assert isinstance(accepted, Accepted)
    assert claims == eager.announced
    assert isinstance(await eager.outcome, Committed)
    parts = ["put:message", "claim:sessions", "commit:session.info"]
    assert points == [f"{part}:before" for part in parts] + [f"{part}:after" for part in parts]


async def test_writes_under_an_early_claim_are_refused_if_the_claim_fails(
    store: SqliteStore, visit: Callable[[Callable[[str], None]], None]
) -> None:
    failures = iter([OSError("the disk does not answer")])
    eager = EagerHolder(store)
    visit(functools.partial(fail_at_claim, failures))
    accepted, claims = await put_and_claim(store, eager)
    assert isinstance(claims, OSError)
    assert isinstance(accepted, Accepted), "the message is not at fault, and was written by itself"
    assert isinstance(await eager.outcome, FenceMissed)
    (again,) = await store.claim(limit=MANY, fold_version=FOLD_VERSION)
    assert again.lease.fence != eager.announced[0].lease.fence, "what was announced is not given out again"


async def test_early_claim_that_no_write_follows_is_committed(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FOLLOW_SECONDS", 0.0)
    announced: list[Claim] = []
    put = store.put(KEY, Message(message_id=MessageId("m"), text="hello"), item_key="message:m", queue_limit=10)
    claims = await store.claim(limit=MANY, fold_version=FOLD_VERSION, early=announced.extend)
    assert isinstance(await put, Accepted)
    assert announced == claims
    assert len(claims) == 1


async def test_turn_of_a_failed_early_claim_runs_once_under_the_next_claim(
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


@pytest.mark.parametrize(("events", "size", "is_loaded"), [(400, 10, True), (600, 10, False), (10, 30_000, False)])
async def test_only_a_session_with_little_to_read_is_loaded_along_with_its_claim(
    store: SqliteStore, events: int, size: int, is_loaded: bool
) -> None:
    """A process that dies of a load must have counted its claim before."""
    await store.commit(Unit(key=KEY, fence=None, events=tuple(info("x" * size) for _ in range(events))))
    await store.put(KEY, Message(message_id=MessageId("m"), text="go"), item_key="m", queue_limit=1)
    (claim,) = await store.claim(limit=MANY, fold_version=FOLD_VERSION)
    assert (claim.loaded is not None) is is_loaded


async def test_session_whose_snapshot_leaves_little_to_read_is_loaded_however_long_its_log_is(
    store: SqliteStore,
) -> None:
    committed = await store.commit(Unit(key=KEY, fence=None, events=tuple(info("x" * 30_000) for _ in range(10))))
    assert isinstance(committed, Committed)
    await store.put(KEY, Message(message_id=MessageId("m"), text="go"), item_key="m", queue_limit=1)
    (claim,) = await store.claim(limit=MANY)
    assert await store.keep_snapshot(claim.lease, Snapshot(FOLD_VERSION, committed.head, b"small"))
    assert await store.release(claim.lease, seen_tail=-1, how="handed_over")
    (again,) = await store.claim(limit=MANY, fold_version=FOLD_VERSION)
    assert again.loaded is not None
    assert (again.loaded.events, again.loaded.row.head) == ((), committed.head)
