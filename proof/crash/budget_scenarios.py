"""Scenarios in which several sessions of one owner share a budget that is not enough for all of them, for the crash
campaign."""

from msgspec.structs import replace

from holdfast.events.ids import Key, SessionId
from holdfast.models.info import TokenPrice, TokenRates
from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Reply, ScriptedCall
from holdfast.store.budget import SpendLimits
from holdfast.store.turn_limits import TurnLimits
from proof.crash.client import Client
from proof.crash.scenario import KEY, Companion, Scenario, rule

CENT = 10_000
"""In microdollars."""

PRICE = TokenPrice(rates=TokenRates(input=0, output=1_000 * CENT, cache_read=0, cache_write=0))
LONGEST = 10_000
"""The longest answer, in tokens. It costs ten cents."""

DAY = 50 * CENT
"""For the five sessions, which would like to have about a dollar."""

ENDS = ("completed", "error")
"""Which sessions get the money depends on their order."""


async def _one_turn(client: Client) -> None:
    await client.send("m1", _words(client.key))
    await client.turns_end(1)


def _words(key: Key) -> str:
    return f"the budget in {key.session}"


def _costing(cents: int, text: str, *calls: ScriptedCall) -> Reply:
    usage = TokenUsage(input_tokens=5, output_tokens=cents * 1_000, cost_microdollars=cents * CENT)
    return Reply(text=text, tool_calls=calls, usage=usage)


def _session(name: str, *, by_companion: bool = False) -> Scenario:
    key = Key(KEY.owner, SessionId(name))
    note = ScriptedCall("note", {"text": "x"})
    return Scenario(
        name=name,
        key=key,
        stages=(_one_turn,),
        rules=(rule(_words(key), _costing(9, "I look.", note), _costing(8, "Again.", note), _costing(3, "Done.")),),
        says=(("m1", _words(key)),),
        ends={"m1": ENDS},
        by_companion=by_companion,
    )


async def _delete(client: Client) -> None:
    """The session is deleted in the middle of a call."""
    await client.set_budget(DAY)
    if not client.is_done("delete"):
        await client.send("m1", "first")
        await client.turn_shows(1)
    await client.delete()
    await client.settle()


BUDGET_SCENARIOS = (
    Scenario(
        name="budget-deleted",
        stages=(_delete,),
        rules=(rule("first", Reply(text="One two hold-for-ever three.")),),
        says=(),
        ends={},
        is_deleted=True,
        price=PRICE,
    ),
    replace(
        _session(KEY.session),
        name="budget",
        beside=(
            _session("second"),
            _session("third"),
            _session("fourth", by_companion=True),
            _session("fifth", by_companion=True),
        ),
        companion=Companion(node="south"),
        nodes=("north",),
        limits=TurnLimits(spend=SpendLimits(day=DAY)),
        price=PRICE,
    ),
)
