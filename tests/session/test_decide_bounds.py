"""A message of a bounded role is held to its bounds when it is promoted, whatever the session got in between."""

import msgspec

from holdfast.events import session, turn
from holdfast.events.body import Body
from holdfast.events.ids import Position
from holdfast.events.inbox import Message
from holdfast.events.message import UserMessage
from holdfast.events.role import RoleBounds
from holdfast.events.session import DirectoryIdentity, ModelChanged, Provider, SettingsChanged
from holdfast.session.actions import Append, Promoted
from holdfast.session.model_step import after_answer, after_answer_promotions
from holdfast.session.state import Phase
from tests.session.logs import STARTED, appended, begun, deciding, kinds, put, said, sends, state_of, text

BOUNDS = RoleBounds(
    folders=("/home/ada",),
    tools=("view",),
    models=("small/*",),
    default_model="small/one",
    rules=("read",),
    providers=False,
)

WITHIN = SettingsChanged(tools=("view",), working_directory="/home/ada/work")


def bounded(words: str, *, rewinds_to: Position | None = None) -> Message:
    return msgspec.structs.replace(sends(words, id="u9"), bounds=BOUNDS, rewinds_to=rewinds_to)


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
