"""What is said in the long session: by the person, and by the scripted model."""

from typing import Final

from holdfast.events.session import ClientTool, Mode
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from holdfast.session.prompt import RECALL

SESSION: Final = "long"
MODE: Final[Mode] = "plan"
MODE_STATED: Final = f"The session is in {MODE} mode."

WINDOW: Final = 6_000
"""In tokens: some ten of the turns below."""

SUMMARY_MILLISECONDS: Final = 20.0
"""How long a summary takes: a kill must be able to hit it."""

ASKED_AT_ONCE: Final = 5
"""How many sentences the model looks for in one turn: their passages must not fill its window."""

GATED_EVERY: Final = 100
"""One turn in so many calls the tool that asks, and the tool that the dry run keeps from its effect."""

PUBLISH: Final = ClientTool(
    name="publish",
    description="Publish a line.",
    parameters={"type": "object", "properties": {"line": {"type": "string"}}},
    asks_permission=True,
)
SIMULATED: Final = "leave_trace"
"""A tool that is allowed, and leaves a trace unless the session is a dry run."""

NOTED: Final = "So it is noted. "
DENIED: Final = "Then it stays unpublished."
FOUND: Final = "Looked for them."


def is_planted(turn: int) -> bool:
    """Every second turn has a sentence that must never be lost."""
    return turn % 2 == 0


def is_gated(turn: int) -> bool:
    return turn % GATED_EVERY == GATED_EVERY - 1 or turn == 25


def key_word(turn: int) -> str:
    return f"lantern{turn:05}"


def planted(turn: int) -> str:
    return f"Planted sentence {turn}: {key_word(turn)} on the stair is {turn * 7 + 3} years old."


def words(turn: int) -> str:
    """The message of a turn."""
    if is_gated(turn):
        return f"Turn {turn}: publish this line now."
    opening = planted(turn) if is_planted(turn) else f"Turn {turn}: the work goes on."
    return f"{opening} {'Please note it. ' * 40}"


def look_for(first: int) -> str:
    """The message that makes the model look for a group of sentences."""
    return f"Look from {first}."


def groups(turns: int) -> list[list[int]]:
    """The turns with a planted sentence, in the groups that are looked for together."""
    marked = [turn for turn in range(turns) if is_planted(turn)]
    return [marked[start : start + ASKED_AT_ONCE] for start in range(0, len(marked), ASKED_AT_ONCE)]


def script(turns: int) -> Script:
    """The model. Each message of the person selects its own rule, whatever older messages are still in the context."""
    looks = tuple(
        Rule((Reply(tool_calls=tuple(_look(turn) for turn in group)), Reply(text=FOUND)), look_for(group[0]))
        for group in groups(turns)
    )
    calls = (ScriptedCall(PUBLISH.name, {"line": "one"}), ScriptedCall(SIMULATED, {"line": "one"}))
    gated = Rule((Reply(tool_calls=calls), Reply(text=DENIED)), "publish this line now")
    notes = Rule((Reply(text=NOTED * 50),), "Please note it.")
    return Script((*looks, gated, notes, Rule((Reply(text="So be it."),))), window=WINDOW)


def _look(turn: int) -> ScriptedCall:
    return ScriptedCall(RECALL, {"query": f"{key_word(turn)} stair"})
