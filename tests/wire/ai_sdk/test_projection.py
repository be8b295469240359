"""A turn as one message: what each thing in a log becomes on the stream. Pure."""

import json

import pytest

from holdfast.events.compaction import CompactionEnded, CompactionStarted
from holdfast.events.ids import CompactionId, MessageId, Position, RequestId, TaskId, ToolCallId
from holdfast.events.message import CallFailed, Noted, Sealed
from holdfast.events.request import Decision, ExternalToolCompleted, PermissionCompleted, UserInputCompleted
from holdfast.events.session import SessionError, TitleChanged
from holdfast.events.task import TaskNotice, TaskNotified
from holdfast.events.tool import ToolError
from holdfast.events.turn import Aborted, Claimed, EndReason
from holdfast.live.live import Delta, Progress, WaitStatus
from holdfast.server.ai_sdk.chunks import (
    MAX_FRAME_BYTES,
    DataQueuedChunk,
    DataStatusChunk,
    DataToolProgressChunk,
    TextEndChunk,
    frames,
    plain,
)
from holdfast.server.ai_sdk.leg import WholeTurn
from holdfast.server.ai_sdk.projection import UiProjection
from holdfast.server.ai_sdk.tool_parts import Release, output_of, text_of
from holdfast.session.fold import INTERRUPTED
from holdfast.session.tool_results import UNKNOWN_OUTCOME
from tests.wire.ai_sdk.logs import (
    TURN,
    asked,
    attempted,
    call,
    delta,
    ended,
    gave,
    handed_out,
    log,
    questioned,
    readings,
    said,
    started,
    step,
    step_ended,
    text,
    thought,
    told,
    tool_started,
    typed,
    types,
    used,
    waits,
)

RUN_BY_US = {"providerExecuted": True}


def decided(decision: Decision, feedback: str = "") -> PermissionCompleted:
    return PermissionCompleted(
        request_id=RequestId("request-1"),
        tool_call_id=ToolCallId("call-1"),
        decision=decision,
        feedback=feedback,
    )


def test_a_turn_is_one_message_under_the_turns_id() -> None:
    turn = log(started(), typed(), TitleChanged(title="Hello"), step(), said(text("Hi.")), step_ended(), ended())
    assert told(turn) == [
        {"type": "start", "messageId": TURN, "messageMetadata": {"createdAt": 1000}},
        {"type": "start-step"},
        {"type": "text-start", "id": "1-0"},
        {"type": "text-delta", "id": "1-0", "delta": "Hi."},
        {"type": "text-end", "id": "1-0"},
        {"type": "finish-step"},
        {
            "type": "finish",
            "finishReason": "stop",
            "messageMetadata": {"durationMs": 7, "reason": "completed"},
        },
    ]


def test_reasoning_text_and_tool_input_follow_each_other_and_are_closed() -> None:
    message = said(thought("Hm."), text("Look:"), call("view", '{"path":"a"}'), text("there."), finish="tool_calls")
    turn = log(started(), typed(), step(), message, tool_started("view"), attempted(), gave("A"), step_ended(), ended())
    assert types(told(turn))[2:-2] == [
        "reasoning-start",
        "reasoning-delta",
        "reasoning-end",
        "text-start",
        "text-delta",
        "text-end",
        "tool-input-start",
        "tool-input-delta",
        "text-start",
        "text-delta",
        "text-end",
        "tool-input-available",
        "tool-output-available",
    ]


def test_parts_of_every_step_have_ids_of_their_own() -> None:
    turn = log(
        *(started(), typed(), step(1), said(text("One.")), step_ended(1)),
        *(step(2), said(text("Two."), number=2), step_ended(2), ended()),
    )
    assert [chunk["id"] for chunk in told(turn) if chunk["type"] == "text-start"] == ["1-0", "2-0"]


def test_a_tool_that_is_run_here_is_said_to_be() -> None:
    turn = log(
        *(started(), typed(), step(), said(call("add", '{"a": 1}')), tool_started("add"), attempted()),
        *(gave("3"), step_ended(), step(2), said(text("3."), number=2), step_ended(2), ended()),
    )
    chunks = told(turn)
    about = {"toolCallId": "call-1"}
    assert [chunk for chunk in chunks if "toolCallId" in chunk] == [
        {"type": "tool-input-start", **about, "toolName": "add"},
        {"type": "tool-input-delta", **about, "inputTextDelta": '{"a": 1}'},
        {"type": "tool-input-available", **about, "toolName": "add", "input": {"a": 1}, **RUN_BY_US},
        {"type": "tool-output-available", **about, "output": "3", **RUN_BY_US},
    ]


def test_input_that_is_not_json_is_shown_as_it_is() -> None:
    turn = log(
        *(started(), typed(), step(), said(call("add", '{"a": ')), tool_started("add")),
        *(gave("No JSON.", error="invalid_arguments"), step_ended(), ended()),
    )
    whole, failed = [chunk for chunk in told(turn) if chunk["type"] in ("tool-input-available", "tool-output-error")]
    assert whole["input"] == '{"a": '
    assert failed == {"type": "tool-output-error", "toolCallId": "call-1", "errorText": "No JSON.", **RUN_BY_US}


def test_an_approval_is_asked_for_and_the_tool_is_not_yet_said_to_run_here() -> None:
    """Else a client that goes on by itself once its own calls are done would not see that this one is not."""
    turn = log(started(), typed(), step(), said(call("create")), tool_started("create"), asked(), waits())
    whole, request = told(turn)[-2:]
    assert whole == {"type": "tool-input-available", "toolCallId": "call-1", "toolName": "create", "input": {}}
    assert request == {"type": "tool-approval-request", "approvalId": "request-1", "toolCallId": "call-1"}


@pytest.mark.parametrize("release", [6, 7])
def test_only_clients_of_release_7_see_how_an_approval_was_decided(release: Release) -> None:
    turn = log(
        *(started(), typed(), step(), said(call("create")), tool_started("create"), asked(), waits()),
        *(decided("approved", "Go on."), attempted(), gave("Done."), step_ended(), ended()),
    )
    decisions = [chunk for chunk in told(turn, release) if chunk["type"] == "tool-approval-response"]
    expected = {"type": "tool-approval-response", "approvalId": "request-1", "approved": True, "reason": "Go on."}
    assert decisions == ([expected] if release == 7 else [])


@pytest.mark.parametrize(
    ("decision", "error"),
    [
        ("denied-interactively-by-user", "rejected"),
        ("denied-no-approval-rule-and-could-not-request-from-user", "denied"),
    ],
)
def test_a_denied_call_is_denied(decision: Decision, error: ToolError) -> None:
    turn = log(
        *(started(), typed(), step(), said(call("create")), tool_started("create"), asked(), waits()),
        *(decided(decision), gave("Rejected.", error=error), step_ended(), ended()),
    )
    assert {"type": "tool-output-denied", "toolCallId": "call-1"} in told(turn)


def test_a_call_denied_without_a_request_is_an_error() -> None:
    turn = log(
        *(started(), typed(), step(), said(call("create")), tool_started("create")),
        *(gave("Permission denied", error="denied"), step_ended(), ended()),
    )
    assert types(told(turn))[-4:] == ["tool-input-available", "tool-output-error", "finish-step", "finish"]


def test_a_clients_tool_is_left_to_the_client_and_its_result_comes_back_as_it_was_given() -> None:
    turn = log(
        *(started(), typed(), step(), said(call("locate")), tool_started("locate"), handed_out("locate"), waits()),
        *(ExternalToolCompleted(request_id=RequestId("request-1")), gave('{"city":"Ulm"}'), step_ended()),
        *(step(2), said(text("Ulm."), number=2), step_ended(2), ended()),
    )
    whole, given = [chunk for chunk in told(turn) if chunk["type"] in ("tool-input-available", "tool-output-available")]
    assert "providerExecuted" not in whole
    assert given == {"type": "tool-output-available", "toolCallId": "call-1", "output": {"city": "Ulm"}}


def test_a_clients_tool_that_had_to_be_approved_is_handed_out_after_that() -> None:
    turn = log(
        *(started(), typed(), step(), said(call("locate")), tool_started("locate"), asked(), waits()),
        *(decided("approved"), handed_out("locate", request_id="request-2"), waits("request-2")),
    )
    assert types(told(turn))[-3:] == ["tool-input-available", "tool-approval-request", "tool-input-available"]


@pytest.mark.parametrize("output", ["Ulm", "42", '"quoted"', '{"a": 1}', "", 42, 1.5, True, None, [1, "x"], {"a": [1]}])
def test_the_result_of_a_clients_tool_survives_the_log(output: object) -> None:
    assert output_of(text_of(output)) == output
    assert type(output_of(text_of(output))) is type(output)


def test_the_answer_to_a_question_comes_back_without_the_words_around_it_for_the_model() -> None:
    turn = log(
        *(started(), typed(), step(), said(call("ask_user")), tool_started("ask_user"), questioned(), waits()),
        *(UserInputCompleted(request_id=RequestId("request-1"), answer="blue"), gave("User responded: blue")),
        *(step_ended(), step(2), said(text("Blue."), number=2), step_ended(2), ended()),
    )
    assert {"type": "tool-output-available", "toolCallId": "call-1", "output": "blue"} in told(turn)


def test_a_turn_whose_last_step_has_a_clients_call_ends_with_a_step_of_its_own() -> None:
    """Else a client that answers by itself once all its calls are done would send for ever."""
    turn = log(
        *(started(), typed(), step(), said(call("locate")), tool_started("locate"), handed_out("locate"), waits()),
        *(Aborted(reason="user_initiated"), ExternalToolCompleted(request_id=RequestId("request-1"), cancelled=True)),
        *(gave("Interrupted.", error="interrupted"), step_ended(), ended("stopped")),
    )
    assert types(told(turn))[-6:] == [
        "tool-output-error",
        "finish-step",
        "start-step",
        "finish-step",
        "message-metadata",
        "abort",
    ]


def test_calls_whose_turn_was_ended_without_its_log_are_closed_before_their_step_is() -> None:
    """The one that ended it could not know of them."""
    calls = call("add"), call("add", call_id="call-2"), call("add", call_id="call-3")
    turn = log(
        *(started(), typed(), step(), said(*calls), *(tool_started("add", f"call-{n}") for n in (1, 2, 3))),
        *(attempted(), gave("3"), attempted("call-2")),
        *(step_ended(0), SessionError(error_type="poisoned", message="Given up."), ended("error")),
    )
    closed = [(chunk["toolCallId"], chunk["errorText"]) for chunk in told(turn) if chunk["type"] == "tool-output-error"]
    assert closed == [("call-2", UNKNOWN_OUTCOME), ("call-3", INTERRUPTED)]
    assert types(told(turn))[-5:] == [
        *("tool-input-available", "tool-output-error", "finish-step", "message-metadata", "error"),
    ]


def test_a_cut_answer_is_closed_marked_and_followed_by_the_new_one() -> None:
    turn = log(
        *(started(), typed(), step(), said(text("Half an"), call("add", '{"a'), interrupted=True)),
        gave("Interrupted.", error="interrupted"),
        Sealed(message_id=MessageId("message-1"), next_message_id=MessageId("message-2"), cause="crash"),
        Noted(text="Answer again.", reason="interrupted"),
        *(Claimed(fence=2, node="n"), said(text("WholeTurn."), number=2), step_ended(), ended()),  # type: ignore[arg-type]
    )
    chunks = told(turn)
    assert types(chunks)[2:-2] == [
        "text-start",
        "text-delta",
        "text-end",
        "tool-input-start",
        "tool-input-delta",
        "tool-output-error",
        "data-interrupted",
        "text-start",
        "text-delta",
        "text-end",
    ]
    assert chunks[8] == {"type": "data-interrupted", "id": "message-1", "data": {"cause": "crash"}}
    assert chunks[9]["id"] == "2-0"


def test_a_steering_message_is_a_part_of_the_turn_and_the_first_message_is_not() -> None:
    turn = log(
        *(started(), typed("First"), step(), said(text("One.")), step_ended()),
        *(typed("And this", "user-2", "steering"), step(2), said(text("Two."), number=2), step_ended(2), ended()),
    )
    (part,) = [chunk for chunk in told(turn) if chunk["type"].startswith("data-")]
    assert part == {"type": "data-follow-up", "id": "user-2", "data": {"messageId": "user-2", "text": "And this"}}


def test_a_turn_without_a_message_of_a_person_says_what_woke_it() -> None:
    notice = TaskNotice(
        task_id=TaskId("task-1"), kind="completed", command="make", exit_code=0, output_file="/somewhere/out"
    )
    turn = log(started(woken=True), TaskNotified(notice=notice), step(), said(text("Built.")), step_ended(), ended())
    start, task, *_ = told(turn)
    assert start["messageMetadata"] == {"createdAt": 1000, "woken": True}
    assert task == {
        "type": "data-task",
        "id": "task-1-completed",
        "data": {"taskId": "task-1", "kind": "completed", "command": "make", "exitCode": 0},
    }


def test_a_silent_notice_is_not_sent() -> None:
    notice = TaskNotice(task_id=TaskId("task-1"), kind="killed", command="make", silent=True)
    turn = log(started(), TaskNotified(notice=notice), typed(), step(), said(text("Hi.")), step_ended(), ended())
    assert "data-task" not in types(told(turn))


def test_an_error_closes_open_parts_and_is_in_the_loaded_message() -> None:
    failure = SessionError(error_type="model_unauthorized", message="The key is not accepted.", retryable=False)
    turn = log(
        *(started(), typed(), step(), said(text("Half"), interrupted=True), step_ended(), failure, ended("error"))
    )
    *_, finished, metadata, error = told(turn)
    assert finished == {"type": "finish-step"}
    assert metadata["messageMetadata"]["error"] == {
        "code": "model_unauthorized",
        "message": "The key is not accepted.",
        "retryable": False,
    }
    assert error == {"type": "error", "errorText": "The key is not accepted."}


def test_a_stop_closes_what_is_open_before_it_says_so() -> None:
    projection = UiProjection()
    for reading in readings(log(started(), typed(), step())):
        projection.take(reading)
    projection.take(delta("Half"))
    (closed,) = projection.take(log(Aborted(reason="user_initiated"), said(text("Half"), interrupted=True), first=4)[1])
    assert isinstance(closed, TextEndChunk)
    turn = log(started(), typed(), step(), said(text("Half"), interrupted=True), step_ended(), ended("stopped"))
    assert types(told(turn))[-4:] == ["text-end", "finish-step", "message-metadata", "abort"]
    assert told(turn)[-1] == {"type": "abort"}


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "stop"),
        ("", "stop"),
        ("length", "length"),
        ("content_filter", "content-filter"),
        ("tool_calls", "other"),
        ("something new", "other"),
    ],
)
def test_only_finish_reasons_that_every_client_knows_are_sent(finish: str, reason: str) -> None:
    turn = log(started(), typed(), step(), said(text("Hi."), finish=finish), step_ended(), ended())
    assert told(turn)[-1]["finishReason"] == reason


def test_usage_is_summed_and_what_is_unknown_is_not_made_up() -> None:
    turn = log(
        *(started(), typed(), step(), said(text("One.")), used(input_tokens=10, output_tokens=5, reasoning_tokens=2)),
        *(step_ended(), step(2), said(text("Two."), number=2), used(input_tokens=20, output_tokens=1)),
        *(step_ended(2), ended()),
    )
    usage = {"inputTokens": 30, "outputTokens": 6, "reasoningTokens": 2, "totalTokens": 36}
    assert told(turn)[-1]["messageMetadata"]["usage"] == usage
    unknown = log(started(), typed(), step(), said(text("One.")), used(output_tokens=5), step_ended(), ended())
    assert told(unknown)[-1]["messageMetadata"]["usage"] == {"outputTokens": 5, "partial": True}


def test_notes_and_failed_calls_are_not_sent() -> None:
    failed = CallFailed(
        message_id=MessageId("message-1"), attempt=1, error_code="model_cut", message="Cut.", retryable=True
    )
    noted = Noted(text="Sum up.", reason="empty answer")
    turn = log(started(), typed(), step(), failed, said(text("Hi.")), step_ended(), noted, ended())
    plain_turn = log(started(), typed(), step(), said(text("Hi.")), step_ended(), ended())
    assert types(told(turn)) == types(told(plain_turn))


def test_a_compaction_beside_the_turn_is_transient_and_leaves_the_message_as_it_is() -> None:
    begun = CompactionStarted(compaction_id=CompactionId("c"), trigger="full", up_to=Position(2), tokens=90)
    done = CompactionEnded(
        compaction_id=CompactionId("c"),
        trigger="full",
        success=True,
        summary="Secret words.",
        tokens_before=90,
        tokens_after=9,
    )
    failed = CompactionEnded(compaction_id=CompactionId("c"), trigger="manual", success=False, error="empty")
    turn = (started(), typed(), step(), said(text("Hi.")), step_ended(), ended())
    compacted = (started(), typed(), step(), begun, said(text("Hi.")), done, step_ended(), failed, ended())
    found = told(log(*compacted))
    assert [chunk["data"] for chunk in found if chunk["type"] == "data-compaction"] == [
        {"compactionId": "c", "trigger": "full", "state": "started", "tokensBefore": 90},
        {
            "compactionId": "c",
            "trigger": "full",
            "state": "ended",
            "method": "summary",
            "tokensBefore": 90,
            "tokensAfter": 9,
        },
        {"compactionId": "c", "trigger": "manual", "state": "failed", "error": "empty"},
    ]
    assert all(chunk["transient"] for chunk in found if chunk["type"] == "data-compaction")
    assert [chunk for chunk in found if chunk["type"] != "data-compaction"] == told(log(*turn))


def test_progress_and_queue_chunks_are_transient() -> None:
    (progress,) = UiProjection().take(Progress(tool_call_id=ToolCallId("call-1"), text="half way"))
    assert isinstance(progress, DataToolProgressChunk)
    assert list(frames([progress, DataQueuedChunk({"n": 1})])) == [
        b'data: {"type":"data-tool-progress","data":{"toolCallId":"call-1","text":"half way"},"transient":true}\n\n'
        b'data: {"type":"data-queued","data":{"n":1},"transient":true}\n\n'
    ]


def test_a_status_is_transient_and_has_only_the_fields_that_apply() -> None:
    status = WaitStatus(awaits="model", seconds=30, since=1_000)
    projection = UiProjection()
    assert projection.take(status) == [], "no chunk comes before the start"
    for reading in readings(log(started(), typed(), step())):
        projection.take(reading)
    assert b"".join(frames(projection.take(status))) == (
        b'data: {"type":"data-status","data":{"awaits":"model","seconds":30,"since":1000,"attempt":1},'
        b'"transient":true}\n\n'
    )
    retry = WaitStatus(awaits="retry", seconds=10, since=1_000, attempt=2, reason="model_unavailable", until=46_000)
    (chunk,) = projection.take(retry)
    assert isinstance(chunk, DataStatusChunk)
    assert chunk.data["reason"] == "model_unavailable"
    assert chunk.data["until"] == 46_000
    assert "toolCallId" not in chunk.data


def test_a_status_in_the_middle_of_a_text_leaves_the_text_open() -> None:
    turn = log(started(), typed(), step(), said(text("Hi there.")), step_ended(), ended())
    found = list(readings(turn))
    middle = next(at for at, reading in enumerate(found) if isinstance(reading, Delta))
    with_status = [*found[: middle + 1], WaitStatus(awaits="answer", seconds=10, since=0), *found[middle + 1 :]]
    shown = [plain(chunk) for chunk in WholeTurn(UiProjection()).take(with_status)]
    assert "data-status" in types(shown)
    assert [chunk for chunk in shown if chunk["type"] != "data-status"] == told(turn)


def test_a_long_text_is_sent_in_pieces_and_not_all_at_once() -> None:
    words = "Grüße an alle! " * 20_000
    message = said(thought(words), text(words), call("add", words))
    turn = log(started(), typed(), step(), message)
    sent = list(frames(WholeTurn(UiProjection()).take(readings(turn))))
    assert max(map(len, sent)) < 2 * MAX_FRAME_BYTES
    lines = [json.loads(line[6:]) for line in b"".join(sent).splitlines() if line]
    for kind, name in (("text", "delta"), ("reasoning", "delta"), ("tool-input", "inputTextDelta")):
        assert "".join(line[name] for line in lines if line["type"] == f"{kind}-delta") == words
    assert max(len(line.get("delta", "")) for line in lines) <= 16_000


@pytest.mark.parametrize("reason", ["completed", "stopped", "error", "interrupted"])
def test_nothing_optional_is_ever_null(reason: EndReason) -> None:
    turn = log(
        *(started(), typed(), step(), said(thought("Hm."), text("Hi."), call("add")), tool_started("add"), attempted()),
        *(gave("3"), step_ended(), ended(reason)),
    )
    assert "null" not in json.dumps(told(turn))
