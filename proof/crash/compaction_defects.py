"""Known defects of compaction, for both stores. See `defects.py`."""

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded
from holdfast.session import compaction, history, interventions, model_step
from holdfast.session.actions import Append, Interrupt, Summarise
from holdfast.session.bounds import Bounds
from holdfast.session.fold import TOO_LONG
from holdfast.session.inputs import Inputs
from holdfast.session.notices import running_tasks
from holdfast.session.state import Compaction, State, Turn, people_in
from holdfast.turns.held_session import HeldSession
from proof.crash.plant import replace


def start_beside_another() -> None:
    """A compaction that another process left is left alone, and a new one starts."""

    def compact(state: State, inputs: Inputs) -> Append | Summarise | None:
        if state.compaction is not None and not inputs.owns_compaction:
            trigger = compaction.due(state, inputs)
            return None if trigger is None else compaction._begin(state, inputs, trigger)
        return intact(state, inputs)

    intact = compaction.compact
    replace(compaction, "compact", compact)


def leave_what_another_began() -> None:
    def go_on(state: State, inputs: Inputs, current: Compaction) -> Append | Summarise | None:
        return intact(state, inputs, current) if inputs.owns_compaction else None

    intact = compaction._go_on
    replace(compaction, "_go_on", go_on)


def keep_a_stop_waiting() -> None:
    """A stop is looked at once the compaction is over."""

    def stop(state: State, inputs: Inputs) -> Append | Interrupt | None:
        return None if state.compaction is not None else intact(state, inputs)

    intact = interventions.stop
    replace(interventions, "stop", stop)


def leave_out_the_current_message() -> None:
    replace(compaction, "_is_current", lambda state, person: False)


def forget_pins() -> None:
    def verbatim(state: State, *given: Any) -> tuple[Any, ...]:
        return intact(msgspec.structs.replace(state, pinned=()), *given)

    intact = compaction.verbatim
    replace(compaction, "verbatim", verbatim)


def leave_out_without_need() -> None:
    """A summary that failed beside the turn cuts the conversation, though it still fits."""

    def ended(*given: Any, **more: Any) -> CompactionEnded:
        found = intact(*given, **more)
        if found.success:
            return found
        state: State = given[0]
        current: Compaction = given[2]
        return msgspec.structs.replace(found, success=True, method="cut", up_to=current.up_to, verbatim=_newest(state))

    intact = compaction.ended
    replace(compaction, "ended", ended)


def _newest(state: State) -> tuple[Any, ...]:
    return tuple(person.position for person in people_in(state.history))[-3:]


def list_tasks_in_front() -> None:
    """The running tasks stand in the system text, as they once did."""

    def instructions(state: State, *given: str) -> tuple[str, ...]:
        return (*intact(state, *given), running_tasks(state.tasks.items()))

    intact = history._instructions
    replace(history, "_instructions", instructions)


def give_up_when_refused() -> None:
    def gives_up(state: State, current: Turn, bounds: Bounds) -> bool:
        failure = current.failure
        return (failure is not None and failure.code == TOO_LONG) or intact(state, current, bounds)

    intact = model_step._gives_up
    replace(model_step, "_gives_up", gives_up)


def forget_the_window() -> None:
    replace(compaction, "window_of", lambda state, inputs: inputs.window)


def book_no_summary() -> None:
    def ledger(self: HeldSession, bodies: Iterable[Body]) -> Iterable[Any]:
        return intact(self, [body for body in bodies if not isinstance(body, CompactionEnded)])

    intact = HeldSession._ledger
    replace(HeldSession, "_ledger", ledger)


def summarise_never() -> None:
    def compact(state: State, inputs: Inputs) -> None:
        return None

    replace(compaction, "compact", compact)
    replace(compaction, "must_wait", lambda state, inputs: False)
