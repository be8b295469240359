"""Frequent statements read only the rows that they need, however many rows there are."""

import re
from collections.abc import AsyncIterator

import asyncpg
import pytest

from holdfast.store.postgres.queries import SQL, commit_units
from tests.postgres_databases import Databases

pytestmark = pytest.mark.anyio

SESSIONS = 20_000
EVENTS = 100_000

FILL = f"""
INSERT INTO holdfast.session
  (owner, id, head, status, runnable, runnable_since, noted_at, lease_holder, created_at, updated_at)
SELECT 'owner ' || n % 500, 'session ' || n, 5, CASE WHEN n % 50 = 0 THEN 'running' ELSE 'idle' END,
       n % 20 = 0, CASE WHEN n % 20 = 0 THEN n END, CASE WHEN n % 60 = 0 THEN n END,
       CASE WHEN n % 200 = 0 THEN 'process' END, n, n
  FROM generate_series(1, {SESSIONS}) AS n;
INSERT INTO holdfast.event (owner, session, position, id, time, type, version, data, said)
SELECT 'owner ' || n % {SESSIONS} % 500, 'session ' || n % {SESSIONS}, n / {SESSIONS} + 1, n, n,
       CASE WHEN n % 5 = 0 THEN 'user.message' ELSE 'assistant.message' END, 1, repeat('x', 100)::bytea,
       CASE WHEN n % 5 = 0 THEN 'said ' || n END
  FROM generate_series(1, {EVENTS}) AS n;
INSERT INTO holdfast.inbox
  (owner, session, item_key, sequence, place, kind, state, outcome, accepted_at, while_running, payload)
SELECT 'owner ' || n % {SESSIONS} % 500, 'session ' || n % {SESSIONS}, 'm' || n, n / {SESSIONS} + 1, 1, 'message',
       CASE WHEN n % 100 = 0 THEN 'accepted' ELSE 'promoted' END, '', n, false, '{{}}'
  FROM generate_series(1, 2 * {SESSIONS}) AS n;
INSERT INTO holdfast.request (owner, session, id, state, kind, turn_id, tool_call_id, title, opened_at)
SELECT 'owner ' || n % 500, 'session ' || n, 'r', CASE WHEN n % 100 = 0 THEN 'open' ELSE 'closed' END, 'permission',
       't', 'c', '', n FROM generate_series(1, {SESSIONS}) AS n;
INSERT INTO holdfast.segment (owner, session, message_id, attempt, block, start, kind, text, tool_call_id, name)
SELECT 'owner ' || n % 500, 'session ' || n, 'm', 1, 0, 0, 'text', 'x', '', '' FROM generate_series(1, {SESSIONS}) AS n;
INSERT INTO holdfast.snapshot (owner, session, fold_version, position, state)
SELECT 'owner ' || n % 500, 'session ' || n, 1, 1, 'x' FROM generate_series(1, {SESSIONS}) AS n;
INSERT INTO holdfast.ledger (owner, session, message_id, attempt, model, time)
SELECT 'owner ' || n % 500, 'session ' || n, 'm', 1, 'x', n FROM generate_series(1, {SESSIONS}) AS n;
INSERT INTO holdfast.task
SELECT 'owner ' || n % 500, 'session ' || n, 't', '', '', '', '', '', 'host', '', '', false, 'completed', false, 0, '',
       n, n, '', n % 100 <> 0 FROM generate_series(1, {SESSIONS}) AS n;
INSERT INTO holdfast.annotation (owner, session) SELECT 'owner ' || n % 500, 'session ' || n
  FROM generate_series(1, {SESSIONS}) AS n;
INSERT INTO holdfast.secret (owner, session, keeper, sealed) SELECT 'owner ' || n % 500, 'session ' || n, 'k', ''
  FROM generate_series(1, {SESSIONS}, 10) AS n;
INSERT INTO holdfast.attachment
SELECT 'owner ' || n % 500, 'session ' || n, 'a', 'p', '', '{{}}', '{{}}', '{{}}', now()
  FROM generate_series(1, {SESSIONS}, 10) AS n;
INSERT INTO holdfast.passage (owner, session, position, tool_call_id, words)
SELECT 'owner ' || n % {SESSIONS} % 500, 'session ' || n % {SESSIONS}, n / {SESSIONS} + 1,
       CASE WHEN n % 2 = 0 THEN 'call ' || n ELSE '' END, array_to_tsvector(ARRAY['word' || n, 'every' || n % 10])
  FROM generate_series(1, {EVENTS}) AS n;
INSERT INTO holdfast.indexed SELECT 'owner ' || n % 500, 'session ' || n, 5 FROM generate_series(1, {SESSIONS}) AS n;
ANALYZE;
"""

COMMITS = {
    "commit of events": ("appended",),
    "commit of segments": ("streamed",),
    "end of a message": ("appended", "dropped", "used"),
}

PLANNED: dict[str, set[str]] = {
    "commit of events": {"session_pkey"},
    "commit of segments": {"session_pkey"},
    "end of a message": {"session_pkey", "segment_pkey"},
    "lock_sessions": {"session_pkey"},
    "units_sessions": {"session_pkey"},
    "still_waiting": {"inbox_waiting"},
    "promote": {"inbox_waiting"},
    "close_requests": {"request_pkey"},
    "lock_session": {"session_pkey"},
    "item": {"inbox_pkey"},
    "waiting_items": {"inbox_waiting"},
    "count_waiting": {"inbox_waiting"},
    "is_stopping": {"inbox_stops"},
    "last_in_line": {"session_unheld"},
    "turns": {"session_slots", "session_unheld", "session_pkey"},
    "free_leases": {"session_held"},
    "free_own_leases": {"session_held"},
    "is_anything_to_claim": {
        "session_needs",
        "session_due",
        "session_left",
        "session_unplaced",
        "session_held",
        "inbox_stops",
        "session_pkey",
    },
    "kinds_waiting": {"session_needs"},
    "owners_waiting": {"session_needs", "session_slots", "session_pkey"},
    "longest_waiting": {"session_unheld", "session_slots", "session_pkey"},
    "slots_of": {"session_slots", "session_pkey"},
    "claimable": {"session_needs", "session_pkey"},
    "unplaced": {"session_unplaced"},
    "lock_waiting": {"session_pkey"},
    "take": {"session_pkey"},
    "wake_due": {"session_due", "session_pkey"},
    "wake_left": {"session_left", "session_pkey"},
    "held": {"session_held"},
    "release": {"session_slots"},
    "sessions": {"session_pkey", "annotation_pkey", "request_open", "inbox_pkey", "inbox_waiting"},
    "listed": {"session_listed", "annotation_pkey", "passage_words", "passage_pkey"},
    "behind": {"session_listed", "indexed_pkey"},
    "index_marks": {"session_pkey", "indexed_pkey"},
    "unindex": {"passage_pkey"},
    "search_log": {"passage_pkey"},
    "passages": {"passage_pkey"},
    "tool_result": {"passage_of_call"},
    "events_after": {"event_pkey"},
    "events_page": {"event_pkey"},
    "keep_snapshot": {"session_slots"},
    "turn_start": {"event_pkey"},
    "load_sizes": {"snapshot_pkey", "event_pkey", "segment_pkey", "inbox_waiting"},
    "events_of": {"event_pkey"},
    "snapshots_of": {"snapshot_pkey"},
    "inbox_of": {"inbox_waiting"},
    "segments_of": {"segment_pkey"},
    "segments": {"segment_pkey"},
    "requests": {"request_open", "inbox_pkey"},
    "glance_first": {"session_busy"},
    "oldest_unclaimed": {"session_unplaced", "session_noted"},
    "tails": {"session_pkey"},
    "ledger": {"ledger_pkey"},
    "host_tasks": {"task_at_work"},
    "session_tasks": {"task_pkey"},
    "attachments": {"attachment_pkey"},
}
"""The indexes by which each statement finds its rows, when it is planned once for all parameters."""

SMALL = {"process", "task_host", "identity"}


@pytest.fixture(scope="module")
async def url(postgres_databases: Databases) -> str:
    url = postgres_databases.server.url(await postgres_databases.fresh())
    db = await asyncpg.connect(url)
    await db.execute(FILL)
    await db.close()
    return url


@pytest.fixture
async def db(url: str) -> AsyncIterator[asyncpg.Connection]:
    db = await asyncpg.connect(url)
    await db.execute("SET plan_cache_mode = force_generic_plan; SET jit = off")
    yield db
    await db.close()


async def plan(db: asyncpg.Connection, statement: str) -> str:
    count = max([int(number) for number in re.findall(r"\$(\d+)", statement)], default=0)
    nothing = f"({', '.join(['NULL'] * count)})" if count else ""
    await db.execute(f"PREPARE planned AS {statement}")
    rows = await db.fetch(f"EXPLAIN EXECUTE planned{nothing}")
    return "\n".join(row[0] for row in rows)


@pytest.mark.parametrize("name", PLANNED)
async def test_statement_finds_its_rows_by_an_index(db: asyncpg.Connection, name: str) -> None:
    await finds_its_rows_by_an_index(
        db, name, commit_units(COMMITS[name], described=True) if name in COMMITS else SQL[name]
    )


@pytest.mark.parametrize("name", [name for name, parts in COMMITS.items() if "dropped" not in parts])
async def test_statement_for_units_that_only_append_finds_its_rows_by_an_index(
    db: asyncpg.Connection, name: str
) -> None:
    await finds_its_rows_by_an_index(db, name, commit_units(COMMITS[name], described=False))


async def finds_its_rows_by_an_index(db: asyncpg.Connection, name: str, statement: str) -> None:
    found = await plan(db, statement)
    scanned = set(re.findall(r"Seq Scan on (?:holdfast\.)?(\w+)", found)) - SMALL
    assert scanned == set(), found
    used = {index for index in re.findall(r"(?:using|Index Scan on) (\w+)", found) if not index.startswith("process")}
    assert used == PLANNED[name], found
