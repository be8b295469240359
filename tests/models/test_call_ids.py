"""The ids of tool calls that another provider gave: unmodified where they fit, else mapped the same way every time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.models.call_ids import COMMON_ID, SAFE_ID, CallIds

ids = st.one_of(st.text(max_size=80), st.sampled_from(["a", "call_0", "call:0", "x" * 64, "x" * 65, ""]))


def test_id_that_fits_is_unmodified() -> None:
    for fitting in ("toolu_01A", "call_abc-9", "x" * 64):
        assert CallIds().of_call(fitting) == fitting


def test_result_has_the_id_of_its_call() -> None:
    mapped = CallIds()
    for odd in ("functions.view:0", "é", "x" * 65, ""):
        assert mapped.of_call(odd) == mapped.of_result(odd)


def test_repeated_id_gets_one_of_its_own_and_each_result_follows_its_call() -> None:
    mapped = CallIds()
    pairs = [(mapped.of_call("call_0"), mapped.of_result("call_0")) for _ in range(3)]
    assert pairs[0] == ("call_0", "call_0")
    assert all(call == result for call, result in pairs)
    assert len(set(pairs)) == 3


def test_own_id_is_unmodified_however_odd() -> None:
    mapped = CallIds(COMMON_ID)
    assert mapped.of_call("call__thought__" + "x" * 500, is_own=True) == "call__thought__" + "x" * 500
    assert mapped.of_result("call__thought__" + "x" * 500) == "call__thought__" + "x" * 500


@settings(deadline=None)
@given(st.lists(ids, max_size=8))
def test_ids_are_accepted_different_and_the_same_every_time(given_ids: list[str]) -> None:
    first, again = (CallIds() for _ in range(2))
    sent = [first.of_call(each) for each in given_ids]
    assert all(map(SAFE_ID.fullmatch, sent))
    assert len(set(sent)) == len(sent)
    assert sent == [again.of_call(each) for each in given_ids]


@settings(deadline=None)
@given(st.lists(ids, max_size=8), st.lists(ids, max_size=4))
def test_later_calls_do_not_change_earlier_ids(earlier: list[str], later: list[str]) -> None:
    short, long = CallIds(), CallIds()
    expected = [short.of_call(each) for each in earlier]
    assert [long.of_call(each) for each in (*earlier, *later)][: len(earlier)] == expected
