"""The order of claims, without a store."""

from holdfast.store.claim_order import first_of, line_up
from holdfast.store.turn_limits import NO_LIMIT

INNER, COUNTED, OLD, NEW = False, True, False, True


def test_sub_sessions_come_first_then_unfinished_turns_then_new_ones_by_age() -> None:
    line = [(COUNTED, NEW, 1, "new"), (COUNTED, OLD, 9, "old"), (COUNTED, NEW, 0, "newest"), (INNER, NEW, 5, "inner")]
    assert [session for session, _ in line_up(line, taken=0, free=NO_LIMIT)] == ["inner", "old", "newest", "new"]


def test_free_slots_bound_the_sessions_that_need_one() -> None:
    line = [(COUNTED, NEW, 1, "a"), (COUNTED, NEW, 2, "b"), (INNER, NEW, 3, "c")]
    for free, sessions in ((1, ["c", "a"]), (0, ["c"]), (-2, ["c"])):
        assert [session for session, _ in line_up(line, taken=2, free=free)] == sessions


def test_owner_with_fewer_turns_comes_first_with_a_line_of_any_length() -> None:
    ann = {
        ("ann", id): place for id, place in line_up([(COUNTED, NEW, 1, "a"), (COUNTED, NEW, 2, "b")], taken=3, free=9)
    }
    bob = {
        ("bob", id): place for id, place in line_up([(COUNTED, NEW, 8, "c"), (COUNTED, NEW, 9, "d")], taken=2, free=9)
    }
    assert first_of(ann | bob, 3) == [("bob", "c"), ("ann", "a"), ("bob", "d")]


def test_same_place_is_taken_in_the_order_of_the_keys() -> None:
    places = {(owner, "s"): (0, NEW, 1) for owner in ("b", "a", "c")}
    assert first_of(places, 2) == [("a", "s"), ("b", "s")]
