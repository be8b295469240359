"""The invariants, shown evidence that was tampered with: each must see what it is there to see."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Fence, Position
from holdfast.events.inbox import InboxItem, Message, Stop
from holdfast.events.message import AssistantMessage
from holdfast.events.session import SettingsChanged
from holdfast.events.turn import Claimed, StepStarted
from holdfast.testing.evidence import Evidence, collect
from holdfast.testing.invariants import check
from holdfast.testing.journal import Failed, Opened, Shown
from holdfast.testing.scenarios import BY_NAME
from holdfast.testing.trial import Trial
from holdfast.testing.victim import KEY
from tests.crash.command import campaign


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Evidence]:
    """What a calm run of a scenario left behind."""

    def of(name: str) -> Evidence:
        scratch = tmp_path_factory.mktemp(name)
        ran = campaign("--scenario", name, "--replay", "calm@0/", "--keep", "--scratch", str(scratch))
        assert ran.status == 0, ran.output
        (folder,) = (path for path in scratch.glob("*/*") if path.is_dir())
        return collect(BY_NAME[name], Trial(scenario=name), Path(folder), KEY)

    return of


def with_event(evidence: Evidence, body: Body, *, before: int) -> Evidence:
    """An event more, and the others moved up."""
    added = Event(Position(0), EventId("added"), 0, body)
    events = (*evidence.events[:before], added, *evidence.events[before:])
    placed = tuple(event.at(Position(number)) for number, event in enumerate(events, 1))
    return msgspec.structs.replace(evidence, events=placed)


def where(evidence: Evidence, kind: type[Body], occurrence: int = 1) -> int:
    found = [index for index, event in enumerate(evidence.events) if isinstance(event.body, kind)]
    return found[occurrence - 1]


def with_outcome(evidence: Evidence, kind: type[Message | Stop], outcome: str) -> Evidence:
    def changed(item: InboxItem) -> InboxItem:
        return msgspec.structs.replace(item, outcome=outcome) if isinstance(item.item, kind) else item

    return msgspec.structs.replace(evidence, inbox=tuple(map(changed, evidence.inbox)))


def lose_an_event(evidence: Evidence) -> Evidence:
    return msgspec.structs.replace(evidence, events=(*evidence.events[:4], *evidence.events[5:]))


def take_over_in_the_middle(evidence: Evidence) -> Evidence:
    return with_event(evidence, Claimed(fence=Fence(2), node="other"), before=where(evidence, StepStarted) + 1)


def change_what_was_sent(evidence: Evidence) -> Evidence:
    """As if what the model is told could change without anybody having asked for it."""
    changed = SettingsChanged(system_message="Something else.")
    return with_event(evidence, changed, before=where(evidence, StepStarted, 2))


def answer_again(evidence: Evidence) -> Evidence:
    last = [event.body for event in evidence.events if isinstance(event.body, StepStarted)][-1]
    return with_event(evidence, last, before=where(evidence, AssistantMessage, 2) + 1)


def read_less_the_second_time(evidence: Evidence) -> Evidence:
    (cursor, readings), *rest = evidence.rereadings
    return msgspec.structs.replace(evidence, rereadings=((cursor, readings[:-1]), *rest))


def find_a_lower_fence(evidence: Evidence) -> Evidence:
    found = (Opened(process=8, fence=1, head=3), Opened(process=9, fence=0, head=3))
    return msgspec.structs.replace(evidence, journal=(*evidence.journal, *found))


def show_something_else(evidence: Evidence) -> Evidence:
    said = evidence.events[where(evidence, AssistantMessage)].body
    assert isinstance(said, AssistantMessage)
    shown = Shown(process=1, message_id=said.message_id, block=0, offset=1, text="something else")
    return msgspec.structs.replace(evidence, journal=(shown, *evidence.journal))


def fail(evidence: Evidence) -> Evidence:
    return msgspec.structs.replace(evidence, journal=(*evidence.journal, Failed(process=1, text="a bug")))


def lose_the_ledger(evidence: Evidence) -> Evidence:
    return msgspec.structs.replace(evidence, ledger=evidence.ledger[1:])


def lose_an_effect(evidence: Evidence) -> Evidence:
    return msgspec.structs.replace(evidence, effects=evidence.effects[1:])


@pytest.mark.parametrize(
    ("invariant", "scenario", "tamper"),
    [
        ("the_log_is_whole", "tools", lose_an_event),
        ("a_live_holder_keeps_its_session", "tools", take_over_in_the_middle),
        ("the_model_is_told_the_same", "tools", change_what_was_sent),
        ("answered_once", "tools", answer_again),
        ("reading_in_parts_is_the_same", "tools", read_less_the_second_time),
        ("fences_only_rise", "tools", find_a_lower_fence),
        ("what_was_shown_stays", "tools", show_something_else),
        ("nothing_fails_by_itself", "tools", fail),
        ("every_attempt_is_booked_once", "tools", lose_the_ledger),
        ("effects_happen_once", "tools", lose_an_effect),
        ("receipts_can_be_read_again", "tools", lambda found: with_outcome(found, Message, "queued")),
        ("a_stop_ends_its_own_turn", "stop-model", lambda found: with_outcome(found, Stop, "turn_ended_before")),
    ],
)
def test_what_was_tampered_with_is_seen(
    evidence: Callable[[str], Evidence], invariant: str, scenario: str, tamper: Callable[[Evidence], Evidence]
) -> None:
    found = evidence(scenario)
    assert check(found) == ()
    assert invariant in {violation.invariant for violation in check(tamper(found))}
