"""`holdfast usage`, `holdfast budgets` and `holdfast sessions continue`."""

import csv
import io
import json

import pytest

from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Failure, Reply, Rule, Script
from tests.cli.processes import Place
from tests.cli.scripts import model
from tests.cli.test_sessions import session_of

USAGE = TokenUsage(input_tokens=1_000, output_tokens=20, cache_read_tokens=600, cost_microdollars=1_500_000)
SCRIPT = Script(rules=(Rule(replies=(Reply(text="Done.", usage=USAGE),)),))
TIERS = {"HOLDFAST_BUDGET_DAY": "1", "HOLDFAST_BUDGET_TIERS": "pro=5"}


async def used(place: Place, times: int) -> list[str]:
    async with model(place, SCRIPT):
        return [await session_of(place, f"number {number}") for number in range(times)]


async def test_usage_is_a_table_json_or_comma_separated(place: Place) -> None:
    sessions = await used(place, 2)
    table = (await place.run("usage", "--by", "model")).out.splitlines()
    assert table[0].startswith("Model calls from 20")
    assert table[1].split() == ["model", "calls", "unknown", "input", "output", "read", "written", *AMOUNTS]
    assert table[2].split() == ["openai/x", "2", "0", "2,000", "40", "1,200", "0", "$3.0000", "$3.0000", "?"]
    assert table[3].split() == ["all", "together", *table[2].split()[1:]]
    view = json.loads((await place.run("usage", "--json")).out)
    assert [row["charged_microdollars"] for row in view["rows"]] == [3_000_000]
    assert view["total"]["calls"] == 2
    done = await place.run("usage", "--by", "session", "--csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert {(row["owner"], row["session"]) for row in rows} == {("local", session) for session in sessions}
    assert [row["cost_microdollars"] for row in rows] == ["1500000", "1500000"]
    assert [row["saved_microdollars"] for row in rows] == ["", ""], "nobody knows the price of this model"
    assert "There were none." in (await place.run("usage", "--owner", "nobody")).out
    assert (
        "There are more; these 1 were charged the most."
        in (await place.run("usage", "--by", "session", "--limit", "1")).out
    )


AMOUNTS = ("cost", "charged", "saved")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--by", "tier"), "group_invalid"),
        (("--from", "yesterday"), "date_invalid"),
        (("--from", "2026-02-02", "--to", "2026-02-01"), "period_invalid"),
        (("--json", "--csv"), "option_not_usable"),
    ],
)
async def test_a_wrong_question_about_usage_says_what_is_allowed(
    place: Place, words: tuple[str, ...], code: str
) -> None:
    done = await place.run("usage", *words)
    assert (done.code, done.out, f"[{code}]" in done.err) == (2, "", True), done


async def test_budgets_are_shown_set_listed_and_reset(place: Place) -> None:
    await used(place, 1)
    shown = (await place.run("budgets", "show", "local", **TIERS)).out.splitlines()
    assert shown[0] == "local: no tier"
    assert shown[1].startswith("  day   $1.5000 of $1.0000 (100.0 %, resets 20")
    assert shown[2] == "  week  $1.5000, no limit"
    listed = await place.run("budgets", "list", **TIERS)
    assert listed.out.startswith("local  -  day $1.5000 of $1.0000 (100.0 %")
    assert (await place.run("budgets", "reset", "local", **TIERS)).out.splitlines()[-1] == "  resets so far: 1"
    again = await place.run("budgets", "reset", "local", **TIERS)
    assert (again.code, "[reset_refused]" in again.err) == (1, True), again
    done = await place.run("budgets", "set", "local", "--tier", "pro", "--week", "none", **TIERS)
    assert done.out.splitlines()[0] == "local: tier pro, week without limit"
    done = await place.run("budgets", "set", "local", "--day", "2.5", "--from", "2100-01-01", "--json", **TIERS)
    view = json.loads(done.out)
    assert view["limits"]["tier"] == "pro"
    assert view["planned"] == [{"at": 4_102_444_800_000, "limits": {"tier": "", "day_microdollars": 2_500_000}}]
    shown = (await place.run("budgets", "show", "local", **TIERS)).out.splitlines()
    assert "  from 2100-01-01 00:00 UTC: no tier, day $2.5000" in shown
    assert (await place.run("budgets", "list", **TIERS)).out == "No owner has used 80 % of a limit.\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("set", "ada", "--tier", "gold"), "tier_unknown"),
        (("set", "ada", "--day", "much"), "config_invalid"),
        (("set", "ada", "--day", "-1"), "config_invalid"),
        (("set", "ada", "--from", "soon"), "date_invalid"),
        (("set", " ", "--day", "1"), "owner_invalid"),
        (("show", "x" * 65), "owner_invalid"),
    ],
)
async def test_wrong_limits_say_what_is_allowed(place: Place, words: tuple[str, ...], code: str) -> None:
    done = await place.run("budgets", *words, **TIERS)
    assert (done.code, done.out, f"[{code}]" in done.err) == (2, "", True), done


async def test_a_session_goes_on_after_an_error(place: Place) -> None:
    refused_once = Reply(text="Back again.", fail=Failure(kind="refused", times=1))
    async with model(place, Script(rules=(Rule(replies=(refused_once,)),))):
        failed = await place.run("run", "hello", "--json")
        session = str(json.loads(failed.out.splitlines()[-1])["session_id"])
        assert failed.code == 4
        done = await place.run("sessions", "continue", session[:8])
        assert (done.code, done.out) == (0, "Back again.\n"), done
        again = await place.run("sessions", "continue", session)
        assert (again.code, "[nothing_to_continue]" in again.err) == (1, True), again
