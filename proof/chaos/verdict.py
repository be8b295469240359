"""The checks of a broken cluster that has come to rest: the invariants of the crash campaign for every session, and the
promises that only several processes can break."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast.events import request
from holdfast.events.ids import Owner
from holdfast.events.message import UserMessage
from holdfast.events.tool import ToolAttempted
from holdfast.store.postgres.store import PostgresStore
from proof.chaos import audit
from proof.chaos.effects import Effect
from proof.chaos.processes import Node
from proof.chaos.replicas import Window
from proof.chaos.talkers import Talker
from proof.crash import invariants, postgres_evidence
from proof.crash.evidence import Evidence
from proof.crash.invariants import Invariant
from proof.crash.journal import Affected
from proof.crash.kept_session import Kept
from proof.crash.scenario import Scenario
from proof.crash.trial import Trial, Violation

OF_THE_CAMPAIGN: Final[tuple[Invariant, ...]] = (
    invariants.every_turn_ends,
    invariants.answered_once,
    invariants.effects_happen_once,
    invariants.the_log_is_whole,
    invariants.folding_in_parts_is_the_same,
    invariants.what_was_shown_stays,
    invariants.reading_in_parts_is_the_same,
    invariants.the_model_is_told_the_same,
    invariants.a_stop_ends_its_own_turn,
    invariants.every_attempt_is_booked_once,
    invariants.fences_only_rise,
    invariants.receipts_can_be_read_again,
)

UNFAIR: Final = 4.0
"""How many times fewer turns a session of one owner may have than that of another before it is called starving."""

NO_SCENARIO: Final = Scenario(name="chaos", stages=(), rules=(), says=(), ends={})
NO_TRIAL: Final = Trial(scenario="chaos", kind="pair", aims=("-",))


async def judge(
    url: str, talkers: Sequence[Talker], effects: Sequence[Effect], windows: Sequence[Window] = ()
) -> list[Violation]:
    """All violations in the database, judged by the responses to clients and the effects of tools. Items that were
    acknowledged in a loss window may be missing; existing items must be as correct as all others."""
    found = [Violation("one_owner_at_each_position", text) for text in audit.trespasses(await audit.noted(url))]
    for talker in talkers:
        kept = await postgres_evidence.kept(url, talker.key)
        its_effects = [effect for effect in effects if effect.session == talker.name]
        evidence = _evidence(kept, talker, list(_known_effects(kept, its_effects, windows)))
        found += [
            Violation(named.__name__, f"{talker.name}: {text}") for named in OF_THE_CAMPAIGN for text in named(evidence)
        ]
        found += [Violation("accepted_means_committed", text) for text in _accepted(talker, kept, windows)]
        found += [Violation("answers_count_once", text) for text in _answers(talker, kept)]
    return found


async def judge_spending(url: str, owner: Owner, day: int) -> list[Violation]:
    """An owner's sessions together kept within their budget of a day, and used it; nothing stays reserved."""
    store = await PostgresStore.open(url, node="judge")
    try:
        await store.settle_left()
        rows = await store.spending(0, 1 << 30, owner=owner)
        left = await audit.ask(url, "SELECT owner, session, message_id FROM holdfast.reservation")
    finally:
        await store.close()
    charged: Counter[int] = Counter()
    for row in rows:
        charged[row.day] += row.charged
    found = [f"{owner} was charged {most} on one day, of {day}" for most in charged.values() if most > day]
    if max(charged.values(), default=0) < day // 2:
        found.append(f"the budget of {owner} was never used: {dict(charged)} of {day}")
    found += [f"still reserved: {row}" for row in left]
    return [Violation("no_money_is_spent_twice", text) for text in found]


def judge_fairness(talkers: Sequence[Talker]) -> list[Violation]:
    """An owner with many sessions does not take the turns of one with few: no owner has far fewer turns than the
    others, in total and per session."""
    turns: dict[str, list[int]] = {}
    for talker in talkers:
        turns.setdefault(talker.key.owner, []).append(talker.turns)
    shares = {owner: sum(ended) / len(ended) for owner, ended in turns.items()}
    most, mean = max(shares.values(), default=0), sum(map(sum, turns.values())) / max(1, len(turns))
    return [
        Violation("no_owner_starves", f"{owner}: {share:.1f} turns for each session, and others have {most:.1f}")
        for owner, share in shares.items()
        if share < most / UNFAIR and sum(turns[owner]) < mean / UNFAIR
    ]


def judge_nodes(nodes: Sequence[Node]) -> list[Violation]:
    """No process logged a bug of its own."""
    return [
        Violation("nothing_fails_by_itself", f"{node.name}: {node.log[node.log.index('Traceback') :][:2000]}")
        for node in nodes
        if "Traceback" in node.log
    ]


def _evidence(kept: Kept, talker: Talker, effects: Sequence[Effect]) -> Evidence:
    affected = tuple(
        Affected(process=0, tool=effect.tool, tool_call_id=effect.tool_call_id, attempt=effect.attempt)
        for effect in effects
    )
    return Evidence(
        scenario=NO_SCENARIO,
        trial=NO_TRIAL,
        journal=tuple(talker.journal),
        effects=affected,
        **msgspec.structs.asdict(kept),
    )


def _known_effects(kept: Kept, effects: Sequence[Effect], windows: Sequence[Window]) -> Iterator[Effect]:
    """Effects without those of lost attempts: the log does not contain these, or the call was repeated."""
    attempts = {
        (body.tool_call_id, body.attempt) for event in kept.events if isinstance(body := event.body, ToolAttempted)
    }
    times = Counter((effect.tool_call_id, effect.attempt) for effect in effects)
    for effect in effects:
        name = (effect.tool_call_id, effect.attempt)
        is_lost = any(window.has(effect.at) for window in windows) and (name not in attempts or times[name] > 1)
        if is_lost:
            times[name] -= 1
        else:
            yield effect


def _accepted(talker: Talker, kept: Kept, windows: Sequence[Window]) -> Iterator[str]:
    """Each acknowledged item is in the log once, in order, with its own text; and the log has no others."""
    said = [(body.message_id, body.content) for event in kept.events if isinstance(body := event.body, UserMessage)]
    logged = {message_id for message_id, _ in said}
    wanted = [
        (found.message_id, found.text)
        for found in talker.sent
        if found.message_id in logged or not any(window.has(found.at) for window in windows)
    ]
    if said != wanted:
        yield f"{talker.name}: the log says {said}, acknowledged were {wanted}"


def _answers(talker: Talker, kept: Kept) -> Iterator[str]:
    """Every request is closed once, by the one answer that was accepted, if there was one."""
    closed: dict[str, list[bool]] = {}
    for event in kept.events:
        if isinstance(event.body, request.PermissionCompleted):
            approves = event.body.decision == "approved"
            closed.setdefault(event.body.request_id, []).append(approves)
    for request_id, decisions in closed.items():
        accepted = [found.approves for found in talker.decided if found.request_id == request_id and found.is_accepted]
        if len(decisions) != 1 or len(accepted) > 1 or (accepted and accepted != decisions):
            yield f"{talker.name}: {accepted} were accepted for {request_id}; the log has {decisions}"
