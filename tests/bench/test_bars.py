"""When a bar is met and when it is missed: pure, from figures that nobody measured."""

import msgspec
import pytest

from bench.bars import LINES, Line, judge
from bench.calibration import Machine, reference
from bench.place import Measured

REFERENCE = Machine(
    calibration_ms=10, calibration_cpu_ms=8, processor="any", cores=2, python="3", sqlite="3", commit_p50_ms=1
)

DELAY = Line(name="delay", probe="p", what="a delay", unit="ms", at_most=100)
RATE = Line(name="rate", probe="p", what="a rate", unit="per s", at_least=100)
RATIO = Line(name="ratio", probe="p", what="a ratio", unit="times", at_least=0.7)


def measured(line: Line, *figures: float, slower: float = 1.0, p50: float = 0.0, p99: float = 0.0) -> list[Measured]:
    return [
        Measured(
            figures={line.name: figure},
            calibration_ms=10 * slower,
            calibration_cpu_ms=8 * slower,
            commit_p50_ms=p50,
            commit_p99_ms=p99,
        )
        for figure in figures
    ]


def verdict(line: Line, runs: list[Measured]) -> str:
    judged = judge(line, runs, reference=REFERENCE)
    assert judged is not None
    return judged.verdict


@pytest.mark.parametrize(
    ("line", "figures", "expected"),
    [
        (DELAY, (100.0,), "met"),
        (DELAY, (101.0,), "MISSED"),
        (DELAY, (1.0, 90.0, 900.0), "met"),
        (DELAY, (150.0, 151.0, 152.0), "MISSED"),
        (RATE, (100.0,), "met"),
        (RATE, (99.0,), "MISSED"),
        (RATIO, (0.69, 0.69, 0.69), "MISSED"),
        (RATIO, (0.7, 0.7, 0.1), "met"),
    ],
)
def test_the_median_is_held_against_the_bar(line: Line, figures: tuple[float, ...], expected: str) -> None:
    assert verdict(line, measured(line, *figures)) == expected


def test_a_median_that_is_worse_by_less_than_the_spread_is_no_miss() -> None:
    assert verdict(DELAY, measured(DELAY, 80, 110, 140)) == "met"
    assert verdict(DELAY, measured(DELAY, 109, 110, 111)) == "MISSED"
    assert verdict(RATIO, measured(RATIO, 0.5, 0.68, 0.9)) == "met"
    assert verdict(RATIO, measured(RATIO, 0.67, 0.68, 0.69)) == "MISSED"


def test_times_and_rates_are_held_against_what_this_machine_can_do_and_ratios_are_not() -> None:
    assert verdict(DELAY, measured(DELAY, 190, slower=2)) == "met"
    assert verdict(DELAY, measured(DELAY, 60, slower=0.5)) == "MISSED"
    assert verdict(RATE, measured(RATE, 55, slower=2)) == "met"
    assert verdict(RATE, measured(RATE, 190, slower=0.5)) == "MISSED"
    assert verdict(RATIO, measured(RATIO, 0.6, slower=2)) == "MISSED"


@pytest.mark.parametrize("slower", [0.1, 1.0, 10.0])
def test_a_time_that_a_person_feels_has_the_same_bar_on_a_fast_machine_and_on_a_slow_one(slower: float) -> None:
    felt = Line(name="key", probe="p", what="key to frame", unit="ms", at_most=100, is_felt=True)
    judged = judge(felt, measured(felt, 99, slower=slower), reference=REFERENCE)
    assert judged is not None
    assert (judged.bar, judged.verdict, judged.stated) == (100, "met", "<= 100 ms on any machine")
    assert verdict(felt, measured(felt, 101, slower=slower)) == "MISSED"


def test_frames_and_key_presses_of_the_page_are_felt_and_nothing_else_is() -> None:
    assert [line.name for line in LINES if line.is_felt] == ["page_scroll_frame", "page_input_p99"]


def test_a_bar_is_stated_with_its_unit_and_its_allowances() -> None:
    named = {line.name: line for line in LINES}

    def stated(name: str) -> str:
        judged = judge(named[name], measured(named[name], 1.0), reference=REFERENCE)
        assert judged is not None
        return judged.stated

    assert stated("turn_200_rate") == ">= 120 /s"
    assert stated("first_chunk") == "<= 2 ms + 3 commits"
    assert stated("delivery_p50") == "<= 2 ms + 1 commit"
    assert stated("delivery_p99") == "<= 10 ms + 1 commit p99"
    assert stated("paced_token_cpu") == "-"


def test_a_share_and_a_size_are_the_same_on_every_machine() -> None:
    share = Line(name="share", probe="p", what="a share", unit="%", at_most=1)
    size = Line(name="size", probe="p", what="a size", unit="MB", at_most=1)
    for line in (share, size):
        assert verdict(line, measured(line, 0.9, slower=0.1)) == "met"
        assert verdict(line, measured(line, 1.1, slower=10)) == "MISSED"


def test_processor_time_is_moved_by_the_processors_clock() -> None:
    line = Line(name="cpu", probe="p", what="CPU", unit="ms", at_most=100, of_processor=True)
    crowded = [msgspec.structs.replace(run, calibration_ms=30.0) for run in measured(line, 150)]
    assert verdict(line, crowded) == "MISSED"
    assert verdict(DELAY, [msgspec.structs.replace(run, figures={"delay": 150.0}) for run in crowded]) == "met"


def test_a_delay_is_allowed_the_commits_of_its_own_run() -> None:
    first = Line(name="first", probe="p", what="first", unit="ms", at_most=2, commits_p50=3)
    last = Line(name="last", probe="p", what="last", unit="ms", at_most=10, commits_p99=1)
    assert verdict(first, measured(first, 4.9, p50=1, p99=100)) == "met"
    assert verdict(first, measured(first, 5.1, p50=1, p99=100)) == "MISSED"
    assert verdict(last, measured(last, 19, p50=0.1, p99=9)) == "met"
    assert verdict(last, measured(last, 19.1, p50=100, p99=9)) == "MISSED"


def test_no_bar_is_below_what_takes_as_long_with_nothing_to_do() -> None:
    line = Line(name="frame", probe="p", what="frame", unit="ms", at_most=50, no_less_than="empty")

    def found(frame: float, empty: float) -> str:
        figures = {"frame": frame, "empty": empty}
        return verdict(line, [msgspec.structs.replace(run, figures=figures) for run in measured(line, frame)])

    assert found(49, 20) == "met"
    assert found(51, 20) == "MISSED"
    assert found(69, 70) == "met"
    assert found(71, 70) == "MISSED"


def test_a_line_without_a_bar_is_reported_and_one_without_a_figure_is_not_judged() -> None:
    unbounded = Line(name="cost", probe="p", what="cost", unit="us")
    assert verdict(unbounded, measured(unbounded, 1e9)) == "reported"
    assert judge(DELAY, measured(RATE, 1), reference=REFERENCE) is None


def test_a_goal_is_stated_and_nothing_is_missed_by_missing_it() -> None:
    line = Line(name="ratio", probe="p", what="a ratio", unit="times", at_least=0.8, goal=1)
    judged = judge(line, measured(line, 0.9), reference=REFERENCE)
    assert judged is not None
    assert (judged.stated, judged.verdict) == (">= 0.8, goal 1", "met")
    assert verdict(line, measured(line, 0.7)) == "MISSED"


def test_every_line_has_a_name_of_its_own_and_at_most_one_bar() -> None:
    names = [line.name for line in LINES]
    assert len(set(names)) == len(names)
    assert [line.name for line in LINES if line.at_most is not None and line.at_least is not None] == []


def test_the_reference_is_a_machine_that_has_no_name() -> None:
    kept = reference()
    assert kept.calibration_ms > 0
    assert kept.calibration_cpu_ms > 0
