"""Draws the state machine from its table. `python -m holdfast.session.diagram` prints docs/state-machine.md, so that
the page never disagrees with the code."""

from collections import defaultdict
from textwrap import wrap

from holdfast.events.body import Body
from holdfast.events.event import RECORDS
from holdfast.session.state import TRANSITIONS, Phase

PAGE = """\
# The state machine of a session

Printed by `python -m holdfast.session.diagram` from the table in `src/holdfast/session/state.py`. An arrow is an event
of the log. An event that has no arrow and stands in no note is illegal there, and is refused before it is durable.

Records are legal everywhere and move nothing: {records}.

```mermaid
{drawing}
```
"""


def mermaid() -> str:
    """The phases, the events that lead from one to another, and per phase a note of the events that stay in it."""
    arrows: dict[tuple[Phase, Phase], list[str]] = defaultdict(list)
    for (phase, kind), target in TRANSITIONS.items():
        arrows[phase, target].append(kind.__name__)
    lines = ["stateDiagram-v2", f"    [*] --> {_id(Phase.IDLE)}"]
    lines += [f'    state "{phase}" as {_id(phase)}' for phase in Phase]
    for (phase, target), names in sorted(arrows.items(), key=_order):
        if phase is not target:
            lines.append(f"    {_id(phase)} --> {_id(target)}: {_label(names)}")
    for phase in Phase:
        if staying := arrows.get((phase, phase)):
            lines += [f"    note right of {_id(phase)}", *_noted(staying), "    end note"]
    return "\n".join(lines)


def page() -> str:
    return PAGE.format(records=", ".join(_names(RECORDS)), drawing=mermaid())


def _order(arrow: tuple[tuple[Phase, Phase], list[str]]) -> tuple[int, int]:
    phases = list(Phase)
    (phase, target), _ = arrow
    return phases.index(phase), phases.index(target)


def _label(names: list[str]) -> str:
    """An arrow with many events stands for every event that is legal in its target phase."""
    return ", ".join(names) if len(names) <= 3 else "any of its events"


def _noted(names: list[str]) -> list[str]:
    return wrap(f"stays: {', '.join(names)}", width=72, initial_indent=" " * 8, subsequent_indent=" " * 8)


def _id(phase: Phase) -> str:
    return phase.name.lower()


def _names(kinds: tuple[type[Body], ...]) -> list[str]:
    return [kind.__name__ for kind in kinds]


if __name__ == "__main__":
    print(page(), end="")
