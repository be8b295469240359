"""A message of a bounded role is held to its bounds when it is promoted, whatever the session got in between."""

import msgspec

from holdfast.events import session, turn
from holdfast.events.body import Body
from holdfast.events.ids import Position, TaskId
from holdfast.events.inbox import Message
from holdfast.events.message import UserMessage
from holdfast.events.role import RoleBounds
from holdfast.events.session import DirectoryIdentity, ModelChanged, Provider, SettingsChanged
from holdfast.session.actions import Append, Promoted
from holdfast.session.model_step import after_answer, after_answer_promotions
from holdfast.session.state import Phase, State
from tests.session.logs import (
    STARTED,
    after,
    appended,
    begun,
    call,
    decided,
    deciding,
    kinds,
    news,
    notified,
    put,
    result,
    said,
    sends,
    state_of,
    step_ended,
    stops,
    task_started,
    text,
    turn_ended,
)

BOUNDS = RoleBounds(
    folders=("/home/ada",),
    tools=("view",),
    models=("small/*",),
    default_model="small/one",
    rules=("read",),
    providers=False,
)

WITHIN = SettingsChanged(tools=("view",), working_directory="/home/ada/work")


def bounded(words: str, *, model: str | None = None, rewinds_to: Position | None = None) -> Message:
    return msgspec.structs.replace(sends(words, id="u9"), bounds=BOUNDS, model=model, rewinds_to=rewinds_to)


def choosing(words: str, model: str) -> Message:
    """A message of an admin that chooses a model for its turn."""
    return msgspec.structs.replace(sends(words), model=model)


def contents(written: Append) -> list[str]:
    return [body.content for body in written.events if isinstance(body, UserMessage)]


def refused(*settings: Body) -> Append:
    written = appended(state_of(STARTED, WITHIN, *settings), deciding(inbox=put(bounded("Go"), sends("Mine"))))
    assert kinds(written) == ["TurnStarted", "UserMessage", "SessionError", "TurnEnded"]
    assert contents(written) == ["Go"]
    assert written.supposes_head
    assert [promoted.sequence for promoted in written.promotes] == [1]
    error, ended = written.events[2:]
    assert isinstance(error, session.SessionError)
    assert isinstance(ended, turn.TurnEnded)
    assert (error.error_type, ended.reason) == ("session_beyond_role", "error")
    return written


def test_a_session_within_the_bounds_runs_the_message_as_it_is() -> None:
    written = appended(state_of(STARTED, WITHIN), deciding(inbox=put(bounded("Go"))))
    assert not [body for body in written.events if isinstance(body, SettingsChanged | ModelChanged)]
    assert contents(written) == ["Go"]


def test_a_session_that_moved_to_another_folder_does_not_run_the_message() -> None:
    refused(SettingsChanged(working_directory="/root"))
    refused(SettingsChanged(working_directory="/home/ada/../bob", directory_identity=identity("/home/bob")))
    refused(SettingsChanged(working_directory="/home/adam"))


def identity(path: str) -> DirectoryIdentity:
    return DirectoryIdentity(path=path, device=1, inode=1, boot="b")


def test_a_session_with_more_tools_or_a_provider_does_not_run_the_message() -> None:
    refused(SettingsChanged(tools=("view", "exec")))
    refused(SettingsChanged(provider=Provider(base_url="http://127.0.0.1/v1")))


def test_a_message_that_replaces_others_takes_nothing_back_when_it_is_not_run() -> None:
    state = state_of(STARTED, WITHIN, SettingsChanged(tools=("view", "exec")))
    written = appended(state, deciding(inbox=put(bounded("Go", rewinds_to=Position(1)))))
    assert not [body for body in written.events if isinstance(body, session.Truncated)]


def test_rules_and_a_model_beyond_the_bounds_are_taken_away_in_the_unit_that_starts_the_turn() -> None:
    granted = SettingsChanged(
        allow=("*", "read"), place_rules=("shell",), directory_identity=identity("/home/ada/work")
    )
    state = state_of(STARTED, WITHIN, granted, ModelChanged(new_model="large/one"))
    written = appended(state, deciding(inbox=put(bounded("Go"))))
    settings, model, started = written.events[:3]
    assert isinstance(settings, SettingsChanged)
    assert isinstance(model, ModelChanged)
    assert (settings.allow, settings.place_rules) == (("read",), ())
    assert isinstance(settings.directory_identity, DirectoryIdentity)
    assert settings.directory_identity.limited
    assert (model.new_model, model.previous_model) == ("small/one", "large/one")
    assert isinstance(started, turn.TurnStarted)
    assert written.supposes_head


def test_a_message_that_would_change_the_session_does_not_join_the_turn_of_another() -> None:
    state = state_of(STARTED, WITHIN, SettingsChanged(allow=("*",)))
    written = appended(state, deciding(inbox=put(sends("Mine"), bounded("Go"))))
    assert contents(written) == ["Mine"]
    joined = appended(state_of(STARTED, WITHIN), deciding(inbox=put(sends("Mine"), bounded("Go"))))
    assert contents(joined) == ["Mine", "Go"]


def test_a_message_steers_a_turn_only_while_the_session_is_within_its_bounds() -> None:
    inputs = deciding(inbox=put(bounded("Go")))
    for widened, promotes in ((), [Promoted(1, "steering")]), ((SettingsChanged(tools=("view", "exec")),), []):
        state = state_of(STARTED, WITHIN, *begun()[1:], *widened, said(text("Done.")))
        assert state.turn is not None
        assert state.phase is Phase.RUNNING_TOOLS
        following = after_answer(state, inputs, state.turn, "Done.")
        assert after_answer_promotions(following, state, inputs) == promotes
        assert isinstance(following[-1], turn.TurnEnded) is not bool(promotes)


def test_a_message_that_replaces_others_rewinds_right_before_its_turn() -> None:
    """There `replaced_turn` finds that the same request was answered already."""
    state = state_of(STARTED, WITHIN, SettingsChanged(allow=("*",)))
    written = appended(state, deciding(inbox=put(bounded("Go", rewinds_to=Position(1)))))
    assert kinds(written)[:3] == ["SettingsChanged", "Truncated", "TurnStarted"]


# The model of a turn


def models(written: Append) -> list[str | None]:
    return [body.model for body in written.events if isinstance(body, UserMessage)]


def test_a_model_beyond_the_bounds_of_the_message_that_names_it_is_not_used() -> None:
    for model, used in (("large/one", None), ("small/two", "small/two"), ("small/one", "small/one")):
        assert models(appended(state_of(STARTED, WITHIN), deciding(inbox=put(bounded("Go", model=model))))) == [used]
        joined = appended(state_of(STARTED, WITHIN), deciding(inbox=put(sends("Mine"), bounded("Go", model=model))))
        assert models(joined) == [None, used]


def test_every_role_may_use_the_default_model() -> None:
    bounds = msgspec.structs.replace(BOUNDS, default_model="server/own")
    sent = msgspec.structs.replace(bounded("Go", model="server/own"), bounds=bounds)
    assert models(appended(state_of(STARTED, WITHIN), deciding(inbox=put(sent)))) == ["server/own"]


def test_a_message_does_not_join_a_turn_that_was_opened_with_a_model_beyond_its_bounds() -> None:
    for model, said_then in (("large/one", ["Mine"]), ("small/two", ["Mine", "Go"])):
        inputs = deciding(inbox=put(choosing("Mine", model), bounded("Go")))
        assert contents(appended(state_of(STARTED, WITHIN), inputs)) == said_then


def test_a_model_beyond_the_bounds_of_a_turn_does_not_join_it() -> None:
    for model, said_then in (("large/one", ["Go"]), ("small/two", ["Go", "Mine"])):
        inputs = deciding(inbox=put(bounded("Go"), choosing("Mine", model)))
        assert contents(appended(state_of(STARTED, WITHIN), inputs)) == said_then


def test_each_message_that_joins_changes_what_the_next_one_may_join() -> None:
    for items, said_then in (
        ((sends("One"), choosing("Two", "large/one"), bounded("Three")), ["One", "Two"]),
        ((sends("One"), bounded("Two"), choosing("Three", "large/one"), sends("Four")), ["One", "Two", "Four"]),
    ):
        assert contents(appended(state_of(STARTED, WITHIN), deciding(inbox=put(*items)))) == said_then


def running(**of_message: object) -> State:
    """A running turn whose message has these fields, after an answer without tool calls."""
    started, opened, user, step = begun()
    assert isinstance(user, UserMessage)
    user = msgspec.structs.replace(user, **of_message)
    return state_of(started, WITHIN, opened, user, step, said(text("Done.")))


def test_a_message_steers_only_a_turn_with_a_model_within_its_bounds() -> None:
    for state, sent, joins in (
        (running(model="large/one"), bounded("Go"), False),
        (running(model="small/two"), bounded("Go"), True),
        (running(bounds=BOUNDS), choosing("Mine", "large/one"), False),
        (running(bounds=BOUNDS), choosing("Mine", "small/two"), True),
        (running(bounds=BOUNDS), sends("Mine"), True),
        (running(), choosing("Mine", "large/one"), True),
    ):
        inputs = deciding(inbox=put(sent))
        assert state.turn is not None
        following = after_answer(state, inputs, state.turn, "Done.")
        promoted = after_answer_promotions(following, state, inputs)
        assert promoted == ([Promoted(1, "steering")] if joins else [])
        assert isinstance(following[-1], turn.TurnEnded) is not joins


# Tasks


STARTS = [said(call()), result(), task_started()]


def idle_with_task(*messages: Message, widened: tuple[Body, ...] = ()) -> State:
    """An idle session; the turn of these messages started the task t9."""
    state = state_of(STARTED, WITHIN)
    after(state, appended(state, deciding(inbox=put(*messages))))
    for body in (*STARTS, step_ended(1), turn_ended(), *widened):
        state = after(state, Append(events=[body]))
    return state


def test_a_task_has_the_bounds_of_all_messages_of_the_turn_that_started_it() -> None:
    other = msgspec.structs.replace(BOUNDS, tools=("view", "create"))
    second = msgspec.structs.replace(bounded("Two"), bounds=other)
    assert idle_with_task(sends("Mine")).tasks[TaskId("t9")].bounds == ()
    assert idle_with_task(sends("Mine"), bounded("Go")).tasks[TaskId("t9")].bounds == (BOUNDS,)
    twice = idle_with_task(bounded("One"), second, bounded("Three"))
    assert twice.tasks[TaskId("t9")].bounds == (BOUNDS, other)


def test_a_turn_that_news_starts_is_held_to_the_bounds_of_the_task() -> None:
    for widened in SettingsChanged(tools=("view", "exec")), SettingsChanged(working_directory="/root"):
        written = appended(idle_with_task(bounded("Go"), widened=(widened,)), deciding(inbox=put(news())))
        assert kinds(written) == ["TurnStarted", "TaskNotified", "SessionError", "TurnEnded"]
        assert [promoted.sequence for promoted in written.promotes] == [1]
        error = written.events[2]
        assert isinstance(error, session.SessionError)
        assert error.error_type == "session_beyond_role"
        unbounded = appended(idle_with_task(sends("Go"), widened=(widened,)), deciding(inbox=put(news())))
        assert kinds(unbounded) == ["TurnStarted", "TaskNotified", "StepStarted"]


def test_a_turn_that_news_starts_has_no_rules_and_no_model_beyond_the_bounds_of_the_task() -> None:
    widened = (SettingsChanged(allow=("*", "read")), ModelChanged(new_model="large/one"))
    written = appended(idle_with_task(bounded("Go"), widened=widened), deciding(inbox=put(news())))
    assert kinds(written) == ["SettingsChanged", "ModelChanged", "TurnStarted", "TaskNotified", "StepStarted"]
    state = after(idle_with_task(bounded("Go"), widened=widened), written)
    assert (state.allow, state.model_now()) == (["read"], "small/one")
    assert state.turn is not None
    assert state.turn.bounds == (BOUNDS,)


def test_a_task_with_several_bounds_keeps_the_rules_that_all_of_them_allow() -> None:
    other = msgspec.structs.replace(BOUNDS, rules=("write",))
    second = msgspec.structs.replace(bounded("Two"), bounds=other)
    state = idle_with_task(bounded("One"), second, widened=(SettingsChanged(allow=("read", "write")),))
    written = appended(state, deciding(inbox=put(news())))
    assert after(state, written).allow == []


def test_bounds_stay_with_the_tasks_that_a_woken_turn_starts() -> None:
    state = idle_with_task(bounded("Go"))
    state = after(state, appended(state, deciding(inbox=put(news()))))
    for body in (said(call("c2"), id="n2"), result("c2"), task_started("t10", call="c2")):
        state = after(state, Append(events=[body]))
    assert [task.bounds for task in state.tasks.values()] == [(BOUNDS,)]


def test_news_of_tasks_with_other_bounds_starts_turns_of_their_own() -> None:
    state = idle_with_task(bounded("Go"))
    inputs = deciding(inbox=put(news("t1"), news("t9"), news("t2")))
    written = appended(state, inputs)
    assert [promoted.sequence for promoted in written.promotes] == [1, 3]
    assert kinds(written) == ["TurnStarted", "TaskNotified", "TaskNotified", "StepStarted"]


def test_news_joins_a_turn_only_if_that_is_within_the_bounds_of_the_task() -> None:
    wide = SettingsChanged(allow=("*",))
    for widened, opening, joins in (
        ((), sends("Mine"), True),
        ((), choosing("Mine", "large/one"), False),
        ((wide,), sends("Mine"), False),
    ):
        state = idle_with_task(bounded("Go"), widened=widened)
        opened = appended(state, deciding(inbox=put(opening, news())))
        assert ("TaskNotified" in kinds(opened)) is joins
        running_turn = after(state, appended(state, deciding(inbox=put(opening))))
        for body in (said(call("c2"), id="n2"), result("c2")):
            running_turn = after(running_turn, Append(events=[body]))
        assert ("TaskNotified" in kinds(appended(running_turn, deciding(inbox=put(news()))))) is joins
        silent = appended(running_turn, deciding(inbox=put(news(silent=True))))
        assert "TaskNotified" in kinds(silent)


def test_a_model_beyond_the_bounds_of_a_task_does_not_join_a_turn_that_has_its_news() -> None:
    state = idle_with_task(bounded("Go"))
    written = appended(state, deciding(inbox=put(news(), sends("Mine"), choosing("More", "large/one"))))
    assert (contents(written), "TaskNotified" in kinds(written)) == (["Mine"], True)


def test_a_turn_that_ends_early_keeps_news_of_any_bounds() -> None:
    state = idle_with_task(bounded("Go"), widened=(SettingsChanged(allow=("*",)),))
    state = after(state, appended(state, deciding(inbox=put(sends("Mine")))))
    assert state.turn is not None
    stopped = decided(state, deciding(inbox=put(stops(state.turn.turn_id), news())))
    assert isinstance(stopped, Append)
    assert notified() in stopped.events
