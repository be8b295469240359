"""A short crash campaign on PostgreSQL, and its control. `make crash-postgresql` is the long one."""

import asyncio
import subprocess
import sys

import pytest

from proof.crash.defects import BY_NAME, DEFECTS
from proof.crash.postgres_defects import PLANTS
from tests.crash.command import campaign, uncaught

KILLS = 48
SEED = 7
JOBS = 2
"""A campaign waits for about as long as it works."""


@pytest.mark.slow
def test_no_promise_is_broken_by_killing_and_every_kind_of_durable_write_is_visited() -> None:
    ran = campaign("--database", "postgresql", "--kills", str(KILLS), "--seed", str(SEED), jobs=JOBS)
    assert ran.status == 0, ran.output
    assert ran.kills >= KILLS, ran.output


@pytest.mark.parametrize("scenario", ["question", "permission-race"])
def test_a_process_that_is_frozen_while_it_holds_a_row_is_no_failure_of_the_others(scenario: str) -> None:
    """Two answers are put at once: the process is frozen right behind the first, in the transaction of the second."""
    trial = ("--scenario", scenario, "--seed", "100001", "--replay", "freeze@0/put:answer:after#1")
    ran = campaign("--database", "postgresql", *trial)
    assert ran.status == 0, ran.output
    assert "1 freezes, 0 violations" in ran.output


@pytest.mark.parametrize("occurrence", [1, 2])
def test_a_process_frozen_before_it_starts_a_command_starts_nothing_when_it_wakes(occurrence: int) -> None:
    """Another process took over and started the command, and its session was deleted."""
    trial = ("--scenario", "task-delete", "--replay", f"freeze@0/start_command:command:before#{occurrence}")
    ran = campaign("--database", "postgresql", *trial)
    assert ran.status == 0, ran.output
    assert "1 freezes, 0 violations" in ran.output


def test_every_defect_of_the_store_can_be_planted_in_this_one_too() -> None:
    assert set(PLANTS) <= set(BY_NAME)


@pytest.mark.slow
def test_every_planted_defect_of_the_store_is_caught() -> None:
    only_here = [defect.name for defect in DEFECTS if "sqlite" not in defect.databases]
    assert uncaught([*PLANTS, *only_here], "postgresql") == []


def test_the_control_searches_for_a_defect_until_it_is_caught() -> None:
    name = "the same client id is accepted twice"
    ran = campaign("--database", "postgresql", "--control", "--defect", name)
    assert ran.status == 0, ran.output
    assert name in ran.output
    assert "NOT CAUGHT" not in ran.output


PREPARE = """
import asyncio, sys, asyncpg
from holdfast.store.postgres.queries import PARTS, SQL, commit_units
from proof.crash.postgres_defects import PLANTS

async def main():
    before = dict(SQL)
    for plant in PLANTS.values():
        plant()
    commit_units.cache_clear()
    changed = [name for name in SQL if SQL[name] != before[name]]
    db = await asyncpg.connect(sys.argv[1])
    for name in changed:
        await db.prepare(commit_units((), described=True) if name == "commit_units" else SQL[name])
    await db.close()
    print(len(changed))

asyncio.run(main())
"""
"""Planted all together: no two of them change the same statement."""


@pytest.mark.anyio
async def test_planted_defects_are_valid_sql(postgres_url: str) -> None:
    """A statement that PostgreSQL can't even read would be caught as well, and prove nothing."""
    command = [sys.executable, "-c", PREPARE, postgres_url]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 9


ARRAYS = """
import asyncio, sys, asyncpg
from proof.crash import postgres_types

async def main():
    await postgres_types.learn(sys.argv[1])
    db = await asyncpg.connect(sys.argv[1])
    asked = "SELECT count(*) FROM pg_prepared_statements WHERE statement ~ 'typeinfo[_]tree'"
    given = [2**40], [True, None], [b"x"], [7]
    found = await db.fetchrow("SELECT $1::bigint[], $2::boolean[], $3::bytea[], $4::integer[]", *given)
    assert tuple(found) == given
    assert await db.fetchval(asked) == 0
    assert await db.fetchval("SELECT $1::date[]", []) == []
    assert await db.fetchval(asked) == 1
    await db.close()

asyncio.run(main())
"""


@pytest.mark.anyio
async def test_a_connection_of_the_campaign_does_not_ask_what_an_array_is(postgres_url: str) -> None:
    command = [sys.executable, "-c", ARRAYS, postgres_url]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


OBSERVE = """
import asyncio, sys, asyncpg
from proof.crash import postgres_trials

def ask(query):
    return postgres_trials.run(sys.argv[1], lambda db: db.raw.fetchval(query))

first = ask("SELECT pg_backend_pid()")
assert ask("SELECT pg_backend_pid()") == first

async def cut():
    db = await asyncpg.connect(sys.argv[1])
    await db.execute(f"SELECT pg_terminate_backend({first}, 5000)")
    await db.close()

asyncio.run(cut())
assert ask("SELECT pg_backend_pid()") != first
"""


@pytest.mark.anyio
async def test_the_runner_keeps_its_connection_and_makes_another_when_it_is_lost(postgres_url: str) -> None:
    command = [sys.executable, "-c", OBSERVE, postgres_url]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
