"""Scenarios in which a session outgrows its model's window, for the crash campaign."""

from holdfast.events.compaction import CompactionEnded
from holdfast.events.turn import TurnStarted
from holdfast.models.scripted import Failure, Reply, ScriptedCall
from holdfast.server.operations import SessionOptions
from proof.crash.client import Client
from proof.crash.scenario import COMPLETED, Scenario, rule

WINDOW = 2_000
"""In tokens: some six of the turns below."""

LONG = " ".join(f"word{number}" for number in range(70))
"""About 150 tokens."""

SAYS = tuple((f"m{number}", f"number-{number} {LONG * (6 if number == 6 else 1)}") for number in range(1, 11))
"""One message is larger than the budget for messages that are kept word for word."""


SAYS_TO_THE_WALL = (*SAYS[:4], ("m5", f"number-5 {LONG} {LONG} {LONG} {LONG} {LONG}"), SAYS[5])
"""The last message but one does not fit any more."""

BEFORE_A_LARGE_ONE = (SAYS[0], ("m2", f"number-2 {LONG * 30}"), *SAYS[2:5])
"""The second message alone is larger than the budget for messages that are kept word for word, a fifth of the window:
the first one is kept only because it is pinned."""


async def _long_talk(client: Client) -> None:
    for number, (message_id, text) in enumerate(SAYS, 1):
        await client.send(message_id, text)
        await client.turns_end(number)


async def _stop_at_the_wall(client: Client) -> None:
    """The last turn but one waits for a summary that does not come. A person stops it, and sends another message."""
    *before, at_the_wall, last = SAYS_TO_THE_WALL
    for number, (message_id, text) in enumerate(before, 1):
        await client.send(message_id, text)
        await client.until(lambda: client.ended() >= number)  # noqa: B023 - it is awaited in the same round
    await client.send(*at_the_wall)
    await client.until(lambda: _turns(client) > len(before))
    await client.stop("s1")
    await client.until(lambda: client.ended() > len(before))
    client.open("hold-the-summary")
    await client.send(*last)
    await client.turns_end(len(before) + 2)


async def _compact_by_hand(client: Client) -> None:
    """A person pins a message and compacts; and then compacts again, cancels that, and unpins the message."""
    *before, last = BEFORE_A_LARGE_ONE
    for number, (message_id, text) in enumerate(before, 1):
        await client.send(message_id, text)
        await client.until(lambda: client.ended() >= number)  # noqa: B023 - it is awaited in the same round
    await client.pin("m1")
    await client.compact("by-hand")
    await client.until(lambda: _compactions(client) >= 1)
    await client.send(*last)
    await client.until(lambda: client.ended() >= 5)
    await client.compact("in-vain")
    await client.cancel_compaction("c1")
    await client.unpin("m1")
    client.open("hold-the-summary")
    await client.send("m6", "number-6")
    await client.turns_end(6)


def _compactions(client: Client) -> int:
    return sum(isinstance(event.body, CompactionEnded) for event in client.events)


def _turns(client: Client) -> int:
    return sum(isinstance(event.body, TurnStarted) for event in client.events)


def _replies(*, uses_tools: bool = True) -> tuple[Reply, ...]:
    last = Reply(text=f"Well. {LONG}")
    if not uses_tools:
        return (last,)
    return (Reply(text="I write.", tool_calls=(ScriptedCall("note", {"text": LONG}),)), last)


TALK = (
    rule("number-3", *_replies()),
    rule("number-7", *_replies()),
    rule("number", *_replies(uses_tools=False)),
)

COMPACTION_SCENARIOS = (
    Scenario(
        name="compaction",
        stages=(_long_talk,),
        rules=TALK,
        says=SAYS,
        ends={message_id: COMPLETED for message_id, _ in SAYS},
        options=SessionOptions(tools=("note",)),
        window=WINDOW,
    ),
    Scenario(
        name="compaction-after-refusal",
        stages=(_long_talk,),
        rules=TALK,
        says=SAYS,
        ends={message_id: COMPLETED for message_id, _ in SAYS},
        options=SessionOptions(tools=("note",)),
        window=WINDOW,
        tells_window=False,
    ),
    Scenario(
        name="compaction-without-summary",
        stages=(_long_talk,),
        rules=TALK,
        says=SAYS,
        ends={message_id: COMPLETED for message_id, _ in SAYS},
        options=SessionOptions(tools=("note",)),
        window=WINDOW,
        summary=Reply(fail=Failure(kind="refused")),
    ),
    Scenario(
        name="compaction-by-hand",
        stages=(_compact_by_hand,),
        rules=TALK,
        says=(*BEFORE_A_LARGE_ONE, ("m6", "number-6")),
        ends={f"m{number}": COMPLETED for number in range(1, 7)},
        options=SessionOptions(tools=("note",)),
        window=10 * WINDOW,
        summary=Reply(texts=("So it was.", "So hold-the-summary it was.")),
    ),
    Scenario(
        name="compaction-stopped",
        stages=(_stop_at_the_wall,),
        rules=TALK,
        says=SAYS_TO_THE_WALL,
        ends={message_id: ("stopped",) if message_id == "m5" else COMPLETED for message_id, _ in SAYS_TO_THE_WALL},
        options=SessionOptions(tools=("note",)),
        window=WINDOW,
        summary=Reply(text="So hold-the-summary it was."),
    ),
)
