"""In any order of people, models, tools and crashes, every turn ends and no illegal event is written."""

from collections import Counter
from itertools import pairwise, takewhile
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.events import compaction, message, request, session, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.event import PROGRESS, RECORDS
from holdfast.events.ids import ToolCallId
from holdfast.events.message import Block, TextBlock, ToolCallBlock
from holdfast.events.task import NoticeKind
from holdfast.session.permissions import NOBODY_COULD
from holdfast.session.state import Phase, people_in
from tests.session.logs import at
from tests.session.world import BOUNDS, World

SEEDS = st.integers(0, 2**32)


def played(seed: int, moves: int, *, window: int | None = None) -> World:
    """Play a random world; the same seed always plays the same."""
    world = World(Random(seed), window=window)
    world.send()
    world.play(moves)
    return world


def turns_of(log: list[Body]) -> list[list[Body]]:
    """The events of each turn, with the events up to the next one, which must be legal without a turn."""
    found: list[list[Body]] = []
    for body in log:
        if isinstance(body, turn.TurnStarted):
            found.append([])
        if found and not isinstance(body, RECORDS):
            found[-1].append(body)
    for events in found:
        while isinstance(events[-1], task.TaskNotified) and events[-1].notice.silent:
            events.pop()
    return found


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 120))
def test_every_session_becomes_idle_and_every_turn_ends(seed: int, moves: int) -> None:
    world = played(seed, moves)
    assert world.state.phase is Phase.IDLE
    assert world.state.turn is None
    assert not world.state.requests
    assert not world.shown
    for events in turns_of(world.log):
        check_ending(events)


def check_ending(events: list[Body]) -> None:
    """Check that a turn ends once, visibly, and with its cause."""
    (ended,) = [body for body in events if isinstance(body, turn.TurnEnded)]
    assert ended is events[-1]
    match ended.reason:
        case "completed":
            last = [body for body in events if isinstance(body, message.AssistantMessage)][-1]
            assert any(isinstance(block, TextBlock) and block.text.strip() for block in last.blocks)
        case "stopped":
            assert sum(isinstance(body, turn.Aborted) for body in events) == 1
        case "error":
            assert sum(isinstance(body, session.SessionError) for body in events) == 1
        case "interrupted":
            raise AssertionError("nothing ends like this")


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 120))
def test_every_message_is_promoted_once_and_every_request_and_call_is_closed_once(seed: int, moves: int) -> None:
    world = played(seed, moves)
    taken = [body.message_id for body in world.log if isinstance(body, message.UserMessage)]
    assert sorted(taken) == sorted(set(world.sent) - world.returned)
    asked = Counter(body.request_id for body in world.log if isinstance(body, REQUESTED))
    closed = Counter(body.request_id for body in world.log if isinstance(body, COMPLETED))
    assert asked == closed
    called = Counter(block.tool_call_id for block in calls_of(world.log))
    finished = Counter(body.tool_call_id for body in world.log if isinstance(body, tool.ToolCompleted))
    assert called == finished


REQUESTED = (request.PermissionRequested, request.ExternalToolRequested, request.UserInputRequested)
COMPLETED = (request.PermissionCompleted, request.ExternalToolCompleted, request.UserInputCompleted)


def calls_of(log: list[Body]) -> list[ToolCallBlock]:
    blocks = [block for body in log if isinstance(body, message.AssistantMessage) for block in body.blocks]
    return [block for block in blocks if isinstance(block, ToolCallBlock)]


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 120))
def test_steering_messages_are_promoted_in_order_of_arrival(seed: int, moves: int) -> None:
    world = played(seed, moves)
    bodies = [body for body in world.log if isinstance(body, message.UserMessage)]
    steering = [body.message_id for body in bodies if body.delivery == "steering"]
    assert steering == sorted(steering, key=world.sent.index)


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 150))
def test_the_request_of_each_step_is_a_prefix_of_the_next_one(seed: int, moves: int) -> None:
    world = played(seed, moves)
    for before, after in pairwise(world.contexts):
        assert after.messages.startswith(before.messages)
        assert after.system == before.system


WINDOWS = st.sampled_from([300, 600, 2_000])


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 150), window=WINDOWS)
def test_compactions_alone_change_the_beginning_of_a_request(seed: int, moves: int, window: int) -> None:
    world = played(seed, moves, window=window)
    for before, after in pairwise(world.contexts):
        assert after.messages.startswith(before.messages) or after.compactions > before.compactions
        assert after.system == before.system


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 150), window=WINDOWS)
def test_compactions_end_in_any_world_and_leave_every_promise(seed: int, moves: int, window: int) -> None:
    world = played(seed, moves, window=window)
    assert world.state.phase is Phase.IDLE
    assert world.state.compaction is None
    for events in turns_of(world.log):
        check_ending([body for body in events if not isinstance(body, COMPACTED)])
    taken = [body.message_id for body in world.log if isinstance(body, message.UserMessage)]
    assert sorted(taken) == sorted(set(world.sent) - world.returned)
    kept = {person.message_id for person in people_in(world.state.history)}
    for event in at(world.log):
        if isinstance(event.body, message.UserMessage):
            assert event.body.message_id in kept or event.position <= world.state.covered


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 150), window=WINDOWS)
def test_a_compaction_that_started_ends_once(seed: int, moves: int, window: int) -> None:
    world = played(seed, moves, window=window)
    started = Counter({body.compaction_id: 1 for body in world.log if isinstance(body, compaction.CompactionStarted)})
    assert Counter(body.compaction_id for body in world.log if isinstance(body, compaction.CompactionEnded)) == started


COMPACTED = (compaction.CompactionStarted, compaction.CompactionEnded)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 120))
def test_only_a_repeatable_tool_is_attempted_again(seed: int, moves: int) -> None:
    world = played(seed, moves)
    names = {block.tool_call_id: block.name for block in calls_of(world.log)}
    for body in world.log:
        if isinstance(body, tool.ToolAttempted) and body.attempt > 1:
            assert names[body.tool_call_id] in ("repeats", "command")


# Tasks


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 150))
def test_all_news_of_tasks_is_promoted_once_and_in_order(seed: int, moves: int) -> None:
    world = played(seed, moves)
    assert [body.notice for body in world.log if isinstance(body, task.TaskNotified)] == world.news
    assert sorted(world.state.tasks) == sorted(world.behind)


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 150))
def test_the_next_model_call_after_news_includes_it(seed: int, moves: int) -> None:
    """Also when the turn that promoted the news was stopped or failed, or its holder died."""
    world = played(seed, moves)
    world.send()
    world.play(0)
    last = world.contexts[-1].messages.decode()
    for notice in world.news:
        shown = last.count(f"<task-id>{notice.task_id}</task-id>\\n  <status>{notice.kind}</status>")
        assert shown == (0 if notice.silent else 1)


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, moves=st.integers(0, 150))
def test_only_news_that_is_not_silent_wakes_a_session_up_to_the_limit(seed: int, moves: int) -> None:
    world = played(seed, moves)
    in_a_row = 0
    for events in turns_of(world.log):
        started = events[0]
        assert isinstance(started, turn.TurnStarted)
        before_the_call = list(takewhile(lambda body: not isinstance(body, turn.StepStarted), events))
        is_told = any(isinstance(body, task.TaskNotified) and not body.notice.silent for body in before_the_call)
        has_message = any(isinstance(body, message.UserMessage) for body in before_the_call)
        assert started.woken == (not has_message)
        assert not started.woken or is_told
        in_a_row = in_a_row + 1 if started.woken else 0
        assert in_a_row <= BOUNDS.max_woken_turns
        if any(isinstance(body, message.UserMessage) for body in events):
            in_a_row = 0


class Stubborn(World):
    """A world whose model never stops calling tools, even when it is offered none."""

    def _block(self) -> Block:
        return ToolCallBlock(tool_call_id=ToolCallId(self.new_id()), name="reports", arguments=f"{len(self.log)}")

    def _model_answers(self) -> None:
        self.shown = (self._block(),)
        super()._model_answers()


def test_a_model_that_never_stops_calling_tools_is_ended_after_the_last_round() -> None:
    world = Stubborn(Random(0))
    world.kind = True
    world.send()
    for _ in range(100):
        if world.run_once():
            break
    else:
        pytest.fail("the turn never ended")
    steps = [body for body in world.log if isinstance(body, turn.StepStarted)]
    assert len(steps) <= BOUNDS.max_rounds + 2
    check_ending(turns_of(world.log)[0])


def test_the_random_world_covers_nearly_every_kind_of_event() -> None:
    log = [body for seed in range(150) for body in played(seed, 120, window=600 if seed % 3 else None).log]
    seen = {type(body) for body in log}
    assert set(PROGRESS) - seen == {session.Truncated}
    assert {body.reason for body in log if isinstance(body, turn.TurnEnded)} == {"completed", "stopped", "error"}
    assert {body.cause for body in log if isinstance(body, message.Sealed)} == {"crash", "provider error"}
    errors = {body.code for body in log if isinstance(body, session.SessionError)}
    assert {"poisoned", "model_cut"} <= errors
    assert {body.notice.kind for body in log if isinstance(body, task.TaskNotified)} == set(get_args(NoticeKind))
    assert any(isinstance(body, turn.TurnStarted) and body.woken for body in log)
    assert any(isinstance(body, request.PermissionCompleted) and body.decision == NOBODY_COULD for body in log)
