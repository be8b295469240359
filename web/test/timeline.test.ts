import assert from "node:assert/strict";
import { test } from "node:test";
import type { EventView } from "../src/api/wire.ts";
import { Scale, timelineOf } from "../src/model/timeline.ts";
import { Log, wholeTurn } from "./log.ts";

function events(log: Log): EventView[] {
  return log.frames.flatMap((frame) => ("event" in frame ? [frame.event] : []));
}

test("a turn has its steps, its attempt and the time that a person took", () => {
  const { spans } = timelineOf(events(wholeTurn()));
  const told = spans.map((span) => [span.lane, span.label, span.tone, span.to !== null]);
  assert.deepEqual(told, [
    ["turn", "turn", "good", true],
    ["holder", "first holder", "holder", true],
    ["model", "step 1", "good", true],
    ["people", "a.txt", "good", true],
    ["holder", "held again", "holder", true],
    ["tools", "create", "good", true],
    ["model", "step 2", "good", true],
  ]);
});

test("a crash in an answer is marked, with the one who took over", () => {
  const log = new Log()
    .event("holdfast.turn_started", { turnId: "t" })
    .event("assistant.turn_start", { turnId: "t", step: 1, messageId: "m1" })
    .event("holdfast.claimed", { fence: 2, node: "b" })
    .event("assistant.message", { messageId: "m1", blocks: [], interrupted: true })
    .event("holdfast.sealed", { messageId: "m1", nextMessageId: "m2", cause: "crash" });
  const { spans, marks } = timelineOf(events(log));
  assert.deepEqual(marks.map((mark) => mark.kind), ["hand-over", "crash"]);
  assert.deepEqual(spans.map((span) => [span.lane, span.tone]), [["turn", "plain"], ["holder", "holder"], ["model", "cut"], ["holder", "other-holder"], ["model", "plain"]]);
});

test("an attempt whose outcome nobody knows is cut where the next begins", () => {
  const log = new Log()
    .event("tool.execution_start", { toolCallId: "c", toolName: "exec" })
    .event("holdfast.tool_attempt", { toolCallId: "c", attempt: 1 })
    .event("holdfast.tool_attempt", { toolCallId: "c", attempt: 2 })
    .event("tool.execution_complete", { toolCallId: "c", success: true });
  const tools = timelineOf(events(log)).spans;
  assert.deepEqual(tools.map((span) => [span.tone, span.detail]), [["cut", "outcome unknown"], ["good", "attempt 2"]]);
});

test("calls that run at the same time stand below each other", () => {
  const log = new Log().event("holdfast.tool_attempt", { toolCallId: "a", attempt: 1 }).event("holdfast.tool_attempt", { toolCallId: "b", attempt: 1 });
  const timeline = timelineOf(events(log));
  assert.deepEqual([timeline.spans.map((span) => span.row), timeline.rows.tools], [[0, 1], 2]);
});

test("the scale keeps the order, and says where a long pause is drawn short", () => {
  const scale = new Scale([0, 10, 1_000, 86_400_000]);
  const xs = [0, 10, 1_000, 86_400_000].map((time) => scale.x(time));
  assert.deepEqual(xs, [...xs].sort((a, b) => a - b));
  assert.equal(scale.breaks.length, 1);
  assert.ok(scale.width < 500);
});
