"""A short crash campaign: every scenario, killed at points drawn by a fixed seed. `make crash` is the long one."""

import pytest

from holdfast.events.event import RECORDS
from holdfast.store.crash_points import OBJECT_VERBS, ONLY_POSTGRESQL, VERBS
from holdfast.store.store import Store
from proof.crash.campaign import Tally, aims_at, can_freeze, plan, unvisited
from proof.crash.trial import Point, parse
from tests.crash.command import campaign

KILLS = 320
SEED = 11
JOBS = 2
"""A campaign waits for about as long as it works."""


def test_the_suite_kills_at_least_three_hundred_times() -> None:
    assert KILLS >= 300


@pytest.mark.slow
def test_no_promise_is_broken_by_killing_and_every_kind_of_durable_write_is_visited() -> None:
    ran = campaign("--kills", str(KILLS), "--seed", str(SEED), jobs=JOBS)
    assert ran.status == 0, ran.output
    assert ran.kills >= KILLS, ran.output


def test_a_kind_of_write_that_nothing_visits_is_noticed() -> None:
    missing = unvisited({"put:message:before", "put:message:after", "commit:user.message:before"}, "postgresql")
    assert "put:before" not in missing
    assert "put:answer" in missing
    assert "commit:after" in missing
    assert "commit:user.message" not in missing
    assert "commit:holdfast.turn_ended" in missing
    assert {f"{verb}:after" for verb in (*VERBS, *ONLY_POSTGRESQL) if verb not in ("put", "commit")} <= set(missing)
    assert {f"{verb}:before" for verb in OBJECT_VERBS} <= set(missing)
    assert {f"commit:{event.__struct_config__.tag}" for event in RECORDS} <= set(missing)


READS = """catch_up load events_after waiting_items tails row rows glance oldest_unclaimed turns receipt requests ledger
attachments granted grants secret keys valid_key tasks running_tasks task owner_tasks host_tasks stray_tasks limits
identity process is_alive held changes turn_start has_next attached stored prompt budget budgets spending spending_by
search_log passages tool_result audit_log webhooks webhook webhook_backlog deliveries delivery
file files"""
"""Methods of a store that write nothing."""

ELSEWHERE = {"backup": "it writes another file", "close": "it is visited as `release:process`"}


def test_every_method_of_the_store_that_writes_is_a_verb_of_the_campaign() -> None:
    methods = {name for name in vars(Store) if not name.startswith("_")}
    assert methods - set(READS.split()) - set(ELSEWHERE) == set(VERBS) - {"register"}


def test_a_point_is_aimed_at_each_time_that_it_is_passed() -> None:
    before, after = "put:message:before", "put:message:after"
    points = (Point(0, 0, before), Point(0, 0, after), Point(0, 0, before), Point(1, 0, before), Point(1, 1, before))
    assert aims_at(points) == [
        (0, (f"{before}#1",)),
        (0, (f"{after}#1",)),
        (0, (f"{before}#2",)),
        (1, (f"{before}#1",)),
        (1, ("-", f"{before}#1")),
    ]


def test_a_process_is_frozen_inside_a_transaction_only_where_the_database_ends_it() -> None:
    assert can_freeze(("commit:segments:after#2",), "sqlite")
    assert not can_freeze(("commit:segments:before#2",), "sqlite")
    assert can_freeze(("commit:segments:before#2",), "postgresql")
    assert not can_freeze(("tool:note:after#1",), "postgresql")


def test_the_same_seed_gives_the_same_trials_and_each_can_be_written_down() -> None:
    tally = Tally(points=tuple(Point(0, 0, f"put:message:{side}") for side in ("before", "after")), seconds=0.1)
    first, second = plan("plain", tally, 5), plan("plain", tally, 5)
    trials = [next(first) for _ in range(100)]
    assert trials == [next(second) for _ in range(100)]
    assert {trial.kind for trial in trials} == {"kill", "pair", "freeze"}
    assert [parse("plain", trial.spec, seed=trial.seed) for trial in trials] == trials
