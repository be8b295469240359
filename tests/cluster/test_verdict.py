"""The verdict of the chaos test can fail: a starving owner is detected."""

import random
from collections import Counter

from holdfast.events.ids import Key, Owner, SessionId
from proof.chaos.replicas import Window
from proof.chaos.talkers import Talker
from proof.chaos.verdict import judge_fairness


def talkers(owner: str, *turns: int) -> list[Talker]:
    made = []
    for number, ended in enumerate(turns):
        key = Key(Owner(owner), SessionId(f"{owner}-{number}"))
        talker = Talker(key, (), random.Random(1), Counter())
        talker.turns = ended
        made.append(talker)
    return made


def test_an_owner_whose_sessions_get_nearly_no_turns_starves() -> None:
    found = judge_fairness([*talkers("many", *[10] * 20), *talkers("few", 1, 0)])
    assert [(violation.invariant, violation.text.partition(":")[0]) for violation in found] == [
        ("no_owner_starves", "few")
    ]


def test_an_owner_with_many_sessions_and_fewer_turns_for_each_does_not() -> None:
    assert judge_fairness([*talkers("many", *[2] * 20), *talkers("few", 10, 10)]) == []


def test_a_window_has_what_was_heard_in_it() -> None:
    window = Window(10, 12)
    assert [at for at in (9, 10, 11, 12, 13) if window.has(at)] == [10, 11, 12]
