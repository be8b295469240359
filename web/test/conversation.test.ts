import assert from "node:assert/strict";
import { test } from "node:test";
import { Conversation, type AssistantItem } from "../src/model/conversation.ts";
import { Log, wholeTurn } from "./log.ts";

function fold(log: Log, { from = 0, to = log.frames.length, into = new Conversation() } = {}): Conversation {
  for (const frame of log.frames.slice(from, to)) {
    if ("event" in frame) into.event(frame.event);
    else into.delta(frame.delta);
  }
  return into;
}

function shown(conversation: Conversation): unknown {
  const items = conversation.items.map(({ version: _, place: __, ...item }) => item);
  return { items, calls: [...conversation.calls], requests: [...conversation.requests], turn: conversation.turn };
}

function message(conversation: Conversation, id: string): AssistantItem {
  return conversation.items.find((item): item is AssistantItem => item.kind === "assistant" && item.messageId === id)!;
}

test("a turn is told with its reasoning, its call and how it ended", () => {
  const conversation = fold(wholeTurn());
  assert.deepEqual(conversation.items.map((item) => item.kind), ["user", "assistant", "assistant", "end"]);
  assert.deepEqual(message(conversation, "m1").blocks.map((block) => block.kind), ["reasoning", "text", "tool_call"]);
  assert.equal(conversation.calls.get("c1")?.status, "done");
  assert.equal(conversation.requests.get("r1")?.outcome, "approved");
  assert.equal(conversation.turn, null);
});

test("without the pieces it is the same: live and loaded later are equal", () => {
  const whole = wholeTurn();
  const later = new Log();
  later.frames.push(...whole.frames.filter((frame) => "event" in frame));
  assert.deepEqual(shown(fold(later)), shown(fold(whole)));
});

test("for every cut, coming back with anything that was seen before changes nothing", () => {
  const whole = wholeTurn();
  const expected = shown(fold(whole));
  for (let cut = 0; cut <= whole.frames.length; cut += 1) {
    for (const back of [0, 1, 3, cut]) {
      const conversation = fold(whole, { to: cut });
      fold(whole, { from: Math.max(0, cut - back), into: conversation });
      assert.deepEqual(shown(conversation), expected, `cut ${cut}, back ${back}`);
    }
  }
});

test("at every cut what is shown of the message in flight is what was sent of it", () => {
  const whole = wholeTurn();
  for (let cut = 0; cut <= whole.frames.length; cut += 1) {
    const conversation = fold(whole, { to: cut });
    for (const item of conversation.items) {
      if (item.kind !== "assistant" || item.state !== "streaming") continue;
      const sent = whole.frames
        .slice(0, cut)
        .flatMap((frame) => ("delta" in frame && frame.delta.message_id === item.messageId ? [frame.delta.text] : []));
      const has = item.blocks.map((block) => (block.kind === "tool_call" ? block.arguments : block.text));
      assert.equal(has.join(""), sent.join(""));
    }
  }
});

test("a piece that overlaps what is there adds only its rest, counted in bytes", () => {
  const log = new Log().event("assistant.turn_start", { turnId: "t", step: 1, messageId: "m" });
  const conversation = fold(log.delta("m", 0, 0, "🙂ab").delta("m", 0, 4, "abcd"));
  assert.deepEqual(message(conversation, "m").blocks, [{ kind: "text", text: "🙂abcd" }]);
});

test("a cut answer stays as it was shown, and the new one follows", () => {
  const log = new Log()
    .event("holdfast.turn_started", { turnId: "t" })
    .event("assistant.turn_start", { turnId: "t", step: 1, messageId: "m1" })
    .delta("m1", 0, 0, "Half an ans")
    .event("holdfast.claimed", { fence: 2, node: "n" })
    .event("assistant.message", { messageId: "m1", blocks: [{ type: "text", text: "Half an ans" }], interrupted: true })
    .event("holdfast.sealed", { messageId: "m1", nextMessageId: "m2", cause: "crash" })
    .event("assistant.turn_start", { turnId: "t", step: 2, messageId: "m2" })
    .delta("m2", 0, 0, "Another one");
  const conversation = fold(log);
  assert.deepEqual(
    conversation.items.map((item) => item.kind === "assistant" && [item.messageId, item.state, item.blocks[0]]),
    [
      ["m1", "interrupted", { kind: "text", text: "Half an ans" }],
      ["m2", "streaming", { kind: "text", text: "Another one" }],
    ],
  );
});

test("what a rewind takes back is gone, with its calls and requests", () => {
  const log = wholeTurn().event("holdfast.truncated", { kept: 2 });
  const conversation = fold(log);
  assert.deepEqual([conversation.items.length, conversation.calls.size, conversation.openRequests.length], [0, 0, 0]);
});

test("a turn that is over leaves nothing open", () => {
  const whole = wholeTurn();
  const asked = whole.frames.findIndex((frame) => "event" in frame && frame.event.type === "holdfast.turn_waiting") + 1;
  const conversation = fold(whole, { to: asked });
  assert.equal(conversation.openRequests.length, 1);
  assert.equal(conversation.turn?.state, "waiting");
  conversation.event({ position: 98, id: "w", time: 1, type: "holdfast.claimed", version: 1, data: { fence: 2, node: "n" } });
  assert.equal(conversation.turn?.state, "waiting", "whoever claims it to take in a message does not answer");
  conversation.event({ position: 99, id: "x", time: 1, type: "holdfast.turn_ended", version: 1, data: { turnId: "t1", reason: "stopped" } });
  assert.equal(conversation.openRequests.length, 0);
  assert.equal(conversation.calls.get("c1")?.status, "interrupted");
});

test("events of another release are passed over", () => {
  const conversation = fold(wholeTurn().event("holdfast.of_tomorrow", { anything: [1] }));
  assert.equal(conversation.items.at(-1)?.kind, "end");
});

test("a log read from the middle of a turn says that the turn goes on, until it ends", () => {
  const whole = wholeTurn();
  const step = whole.frames.findIndex((frame) => "event" in frame && frame.event.type === "assistant.turn_start" && frame.event.data.step === 2);
  const middle = fold(whole, { from: step, to: step + 2 });
  assert.deepEqual([middle.turn?.turnId, middle.turn?.state], ["t1", "running"]);
  assert.equal(fold(whole, { from: step + 2, into: middle }).turn, null);
});

test("a turn that ends closes what is open in it, and leaves alone what earlier turns had", () => {
  const log = new Log();
  for (const turnId of ["t1", "t2"]) {
    const [messageId, toolCallId, requestId] = [`m-${turnId}`, `c-${turnId}`, `r-${turnId}`];
    log
      .event("holdfast.turn_started", { turnId })
      .event("assistant.turn_start", { turnId, step: 1, messageId })
      .event("assistant.message", { messageId, blocks: [{ type: "tool_call", toolCallId, name: "exec", arguments: "{}" }] })
      .event("permission.requested", { requestId, toolCallId, kind: "shell" });
    const open = fold(log);
    assert.deepEqual(open.openRequests.map((asked) => asked.requestId), [requestId]);
    assert.equal(open.calls.get(toolCallId)?.status, "waiting");
    log.event("holdfast.turn_ended", { turnId, reason: "stopped" });
    const ended = fold(log);
    assert.deepEqual(ended.openRequests, []);
    assert.deepEqual(new Set([...ended.calls.values()].map((call) => call.status)), new Set(["interrupted"]));
    assert.deepEqual(ended.ofTurn(turnId).map((item) => item.kind), ["assistant", "end"]);
  }
});

test("what a running command says is kept when the log is folded from further back", () => {
  const log = new Log()
    .event("holdfast.turn_started", { turnId: "t" })
    .event("assistant.message", { messageId: "m", blocks: [{ type: "tool_call", toolCallId: "c", name: "exec", arguments: "{}" }] })
    .event("holdfast.tool_attempt", { toolCallId: "c", attempt: 1 });
  const before = fold(log);
  before.progress({ tool_call_id: "c", text: "compiling" } as Parameters<Conversation["progress"]>[0]);
  const further = fold(log);
  further.carryOver(before);
  assert.equal(further.calls.get("c")?.progress, "compiling");
});

/** Two turns with calls and requests, the second in the same words under other names. */
function twoTurns(): Log {
  const log = wholeTurn();
  const again = new Log();
  const renamed = JSON.parse(JSON.stringify(log.frames).replace(/"([trcum])(\d)"/g, '"$1$2b"')) as Log["frames"];
  for (const frame of log.frames) if ("event" in frame) again.event(frame.event.type, frame.event.data);
  for (const frame of renamed) if ("event" in frame && frame.event.type !== "session.start") again.event(frame.event.type, frame.event.data);
  return again;
}

test("at every cut, what is put before as it is comes to the same as the whole log", () => {
  const log = twoTurns();
  const whole = fold(log);
  const joined: number[] = [];
  for (let cut = 1; cut < log.frames.length; cut += 1) {
    const before = fold(log, { to: cut });
    const after = fold(log, { from: cut });
    if (!after.goesAfter(before)) continue;
    joined.push(cut);
    after.putBefore(before);
    const sorted = (conversation: Conversation): unknown => ({
      items: conversation.items.map(({ version: _, ...item }) => item),
      calls: new Map(conversation.calls),
      requests: new Map(conversation.requests),
      turn: conversation.turn,
      model: conversation.model,
      turns: whole.items.map((item) => conversation.ofTurn(item.turnId).map((found) => found.key)),
    });
    assert.deepEqual(sorted(after), sorted(whole), `cut ${cut}`);
  }
  const starts = log.frames.flatMap((frame, index) => ("event" in frame && frame.event.type === "holdfast.turn_started" ? [index] : []));
  assert.deepEqual(joined, starts);
});

test("what is put before does not change what stands, but for what it says of it", () => {
  const log = twoTurns();
  const cut = log.frames.length / 2 + 0.5;
  const after = fold(log, { from: cut });
  const items = [...after.items];
  after.putBefore(fold(log, { to: cut }));
  assert.ok(items.every((item) => after.items.includes(item)));
  assert.ok(items.every((item) => item.version > 0), "The model is known now, which an answer is drawn with.");
});

test("a log that takes back what came before is not put after it", () => {
  const log = twoTurns();
  const cut = log.frames.length;
  log.event("holdfast.turn_started", { turnId: "t3" }).event("holdfast.turn_ended", { turnId: "t3", reason: "completed" });
  assert.ok(fold(log, { from: cut }).goesAfter(fold(log, { to: cut })));
  log.event("holdfast.truncated", { kept: 5 });
  assert.ok(!fold(log, { from: cut }).goesAfter(fold(log, { to: cut })));
});

function compacted(): Log {
  return wholeTurn()
    .event("session.compaction_start", { compactionId: "k1", trigger: "manual", upTo: 20, tokens: 124_000, window: 128_000 })
    .event("session.compaction_start", { compactionId: "k1", trigger: "manual", upTo: 20, tokens: 124_000, window: 128_000, attempt: 2 })
    .event("session.compaction_complete", {
      compactionId: "k1",
      trigger: "manual",
      success: true,
      upTo: 20,
      summary: "To write it.",
      verbatim: [3],
      removed: 4,
      tokensBefore: 124_000,
      tokensAfter: 9_000,
    });
}

test("a compaction is one line, however often its summary was begun, and the context has the size that it left", () => {
  const conversation = fold(compacted());
  const lines = conversation.items.filter((item) => item.kind === "compaction");
  assert.deepEqual(lines.map((item) => [item.state, item.tokensBefore, item.tokensAfter, item.summary, item.kept]), [
    ["done", 124_000, 9_000, "To write it.", 1],
  ]);
  assert.equal(conversation.compaction, null);
  assert.equal(conversation.contextTokens, 9_000);
  const failed = fold(wholeTurn().event("session.compaction_complete", { compactionId: "k2", trigger: "manual", success: false, error: "empty" }));
  assert.deepEqual(failed.items.flatMap((item) => (item.kind === "compaction" ? [item.state, item.error] : [])), ["failed", "empty"]);
});

test("a compaction whose start was not read is told once, and again from the start when that is read", () => {
  const log = compacted();
  const end = fold(log, { from: log.frames.length - 1 });
  assert.deepEqual(end.items.flatMap((item) => (item.kind === "compaction" ? [item.state] : [])), ["done"]);
  assert.equal(end.goesAfter(fold(log, { to: log.frames.length - 1 })), false);
});

test("a message is pinned until it is unpinned, wherever that was read", () => {
  const log = wholeTurn().event("holdfast.message_pinned", { messageId: "u1", pinned: true, position: 3, content: "Write it" });
  const before = fold(log);
  assert.equal(before.isPinned("u1"), true);
  assert.equal(fold(log.event("holdfast.message_pinned", { messageId: "u1", pinned: false, position: 0 })).isPinned("u1"), false);
});
