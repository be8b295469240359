"""The invariants, shown evidence that was tampered with: each must see what it is there to see."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Fence, Position
from holdfast.events.inbox import InboxItem, Message, Stop
from holdfast.events.message import AssistantMessage
from holdfast.events.session import SettingsChanged, Truncated
from holdfast.events.task import TaskNotified
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import Claimed, StepStarted, TurnStarted
from holdfast.server.operations import SessionOptions
from proof.crash.evidence import Evidence, collect
from proof.crash.invariants import check
from proof.crash.journal import Asked, Begun, Failed, Occupied, Opened, Shown, Unanswered
from proof.crash.scenarios import BY_NAME
from proof.crash.stage import OWN_TOOLS
from proof.crash.trial import Trial
from tests.crash.command import campaign

Tamper = Callable[[Evidence], Evidence]


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Evidence]:
    """The evidence of a run of a scenario without kills."""

    @cache
    def of(name: str) -> Evidence:
        scratch = tmp_path_factory.mktemp(name)
        ran = campaign("--scenario", name, "--replay", "calm@0/", "--keep", "--scratch", str(scratch))
        assert ran.status == 0, ran.output
        (folder,) = (path for path in scratch.glob("*/*") if path.is_dir())
        return collect(BY_NAME[name], Trial(scenario=name), Path(folder))

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


def receive_one_event_less(evidence: Evidence) -> Evidence:
    last = evidence.received[-1].id
    left = tuple(found for found in evidence.received if found.id != last)
    return msgspec.structs.replace(evidence, received=left)


def receive_in_another_order(evidence: Evidence) -> Evidence:
    return msgspec.structs.replace(evidence, received=tuple(reversed(evidence.received)))


def receive_with(evidence: Evidence, **more: Any) -> Evidence:
    """A repeat of the first request, with a difference."""
    repeated = msgspec.structs.replace(evidence.received[0], **more)
    return msgspec.structs.replace(evidence, received=(*evidence.received, repeated))


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


def with_a_key_that_works(evidence: Evidence) -> Evidence:
    keys = tuple(msgspec.structs.replace(row, revoked_at=None) for row in evidence.keys)
    return msgspec.structs.replace(evidence, keys=keys)


def with_acts_told_twice(evidence: Evidence) -> Evidence:
    return msgspec.structs.replace(evidence, audit=evidence.audit * 2)


def take_nothing_back(evidence: Evidence) -> Evidence:
    events = tuple(event for event in evidence.events if not isinstance(event.body, Truncated))
    return msgspec.structs.replace(evidence, events=events)


def replace_once_less(evidence: Evidence) -> Evidence:
    last = where(evidence, Truncated, 2)
    return msgspec.structs.replace(evidence, events=evidence.events[:last])


# Several sessions, owners and nodes


def run_two_at_a_time(evidence: Evidence) -> Evidence:
    entered = tuple(Occupied(process=1, owner="anna", session=name, enters=True) for name in ("one", "two"))
    return msgspec.structs.replace(evidence, journal=(*evidence.journal, *entered))


def run_on_another_node(evidence: Evidence) -> Evidence:
    assert evidence.row is not None
    row = msgspec.structs.replace(evidence.row, host="north")
    cast = tuple(Begun(process=effect.process, node="south", tools=OWN_TOOLS) for effect in evidence.effects)
    return msgspec.structs.replace(evidence, row=row, cast=cast)


def call_a_tool_where_it_is_not(evidence: Evidence) -> Evidence:
    options = SessionOptions(tools=("append_line",))
    needing = msgspec.structs.replace(evidence, scenario=msgspec.structs.replace(evidence.scenario, options=options))

    def changed(body: Body) -> Body:
        return msgspec.structs.replace(body, error="unknown_tool") if isinstance(body, ToolCompleted) else body

    return with_bodies(needing, changed)


def leave_a_write_unanswered(evidence: Evidence) -> Evidence:
    entry = Unanswered(process=1, step="send m1", code="store_busy")
    return msgspec.structs.replace(evidence, journal=(*evidence.journal, entry))


# Tasks


def with_bodies(evidence: Evidence, change: Callable[[Body], Body]) -> Evidence:
    events = tuple(msgspec.structs.replace(event, body=change(event.body)) for event in evidence.events)
    return msgspec.structs.replace(evidence, events=events)


def tell_again(evidence: Evidence) -> Evidence:
    told = evidence.events[where(evidence, TaskNotified)].body
    return with_event(evidence, told, before=where(evidence, TaskNotified) + 1)


def tell_another_exit_code(evidence: Evidence) -> Evidence:
    def changed(body: Body) -> Body:
        if not isinstance(body, TaskNotified):
            return body
        return TaskNotified(notice=msgspec.structs.replace(body.notice, exit_code=0))

    return with_bodies(evidence, changed)


def tell_nothing(evidence: Evidence) -> Evidence:
    events = tuple(event for event in evidence.events if not isinstance(event.body, TaskNotified))
    return msgspec.structs.replace(evidence, events=events)


def with_row(evidence: Evidence, **changes: Any) -> Evidence:
    first, *rest = evidence.commands
    return msgspec.structs.replace(evidence, commands=(msgspec.structs.replace(first, **changes), *rest))


def ask_the_model(evidence: Evidence, change: Callable[[Asked], Asked]) -> Evidence:
    entries = tuple(change(entry) if isinstance(entry, Asked) else entry for entry in evidence.journal)
    return msgspec.structs.replace(evidence, journal=entries)


def tell_the_model_twice_at_once(evidence: Evidence) -> Evidence:
    return ask_the_model(evidence, lambda entry: msgspec.structs.replace(entry, notices=entry.notices * 2))


def tell_the_model_nothing(evidence: Evidence) -> Evidence:
    return ask_the_model(evidence, lambda entry: msgspec.structs.replace(entry, notices=()))


def keep_it_on_the_list(evidence: Evidence) -> Evidence:
    (row,) = evidence.commands
    return ask_the_model(evidence, lambda entry: msgspec.structs.replace(entry, running=(row.task_id,)))


def wake_it_for_nothing(evidence: Evidence) -> Evidence:
    def changed(body: Body) -> Body:
        return msgspec.structs.replace(body, woken=True) if isinstance(body, TurnStarted) else body

    return with_bodies(evidence, changed)


def of_tasks() -> list[tuple[str, str, Tamper]]:
    rows, told = "rows_of_tasks_agree_with_the_log", "every_task_is_told_once"
    return [
        ("commands_run_once", "task-idle", lambda found: msgspec.structs.replace(found, lines={"one": 2})),
        ("commands_run_once", "task-idle", lambda found: msgspec.structs.replace(found, lines={})),
        ("no_command_runs_on", "task-idle", lambda found: msgspec.structs.replace(found, alive=("sleep 9",))),
        (told, "task-idle", tell_again),
        (told, "task-idle", tell_another_exit_code),
        (told, "task-idle", tell_nothing),
        (rows, "task-idle", tell_another_exit_code),
        (rows, "task-idle", lambda found: with_row(found, status="running")),
        (rows, "task-idle", lambda found: with_row(found, is_settled=False)),
        (rows, "task-idle", lambda found: with_row(found, kill_asked="person")),
        (rows, "task-idle", lambda found: with_row(found, exit_code=9)),
        (rows, "task-delete", lambda found: msgspec.structs.replace(found, records=1)),
        ("the_model_hears_of_its_tasks", "task-idle", tell_the_model_twice_at_once),
        ("the_model_hears_of_its_tasks", "task-idle", tell_the_model_nothing),
        ("the_model_hears_of_its_tasks", "task-idle", keep_it_on_the_list),
        ("only_news_wakes_a_session", "task-idle", wake_it_for_nothing),
    ]


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
        ("keys_are_kept", "entrusted", lambda found: msgspec.structs.replace(found, keys=())),
        ("keys_are_kept", "entrusted", with_a_key_that_works),
        ("every_act_is_told_with_itself", "entrusted", with_a_key_that_works),
        ("every_act_is_told_with_itself", "entrusted", lambda found: msgspec.structs.replace(found, audit=())),
        ("every_act_is_told_with_itself", "entrusted", with_acts_told_twice),
        ("what_is_replaced_is_taken_back", "replaced", take_nothing_back),
        ("what_is_replaced_is_taken_back", "replaced", replace_once_less),
        ("slots_are_never_exceeded", "tools", run_two_at_a_time),
        ("sessions_run_where_they_can", "tools", run_on_another_node),
        ("sessions_run_where_they_can", "tools", call_a_tool_where_it_is_not),
        ("nothing_fails_by_itself", "tools", leave_a_write_unanswered),
        ("webhooks_report_every_event_in_order", "webhook", receive_one_event_less),
        ("webhooks_report_every_event_in_order", "webhook", receive_in_another_order),
        ("webhooks_report_every_event_in_order", "webhook", lambda found: receive_with(found, digest="another")),
        ("webhooks_report_every_event_in_order", "webhook", lambda found: receive_with(found, is_verified=False)),
        *of_tasks(),
    ],
)
def test_tampered_evidence_violates_its_invariant(
    evidence: Callable[[str], Evidence], invariant: str, scenario: str, tamper: Tamper
) -> None:
    found = evidence(scenario)
    assert check(found) == ()
    assert invariant in {violation.invariant for violation in check(tamper(found))}
