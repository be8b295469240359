import assert from "node:assert/strict";
import { test } from "node:test";
import { Conversation } from "../src/model/conversation.ts";
import { partsOf } from "../src/model/parts.ts";
import { Log } from "./log.ts";

function turns(count: number): Log {
  const log = new Log();
  for (let number = 0; number < count; number += 1) {
    const turnId = `t${number}`;
    log
      .event("holdfast.turn_started", { turnId })
      .event("user.message", { messageId: `u${number}`, turnId, content: "Say it", delivery: "idle" })
      .event("assistant.turn_start", { turnId, step: 1, messageId: `m${number}` })
      .event("assistant.message", { messageId: `m${number}`, blocks: [{ type: "text", text: "Said." }] })
      .event("holdfast.turn_ended", { turnId, reason: "completed" });
  }
  return log;
}

function fold(log: Log, into = new Conversation()): Conversation {
  for (const frame of log.frames) if ("event" in frame) into.event(frame.event);
  return into;
}

test("every item is in one part, in order, and only the last part is the last", () => {
  const { items } = fold(turns(40));
  const parts = partsOf(items);
  assert.ok(parts.length > 3);
  assert.deepEqual(parts.flatMap((part) => part.items), items);
  assert.deepEqual(parts.filter((part) => part.isLast), [parts.at(-1)]);
  assert.equal(new Set(parts.map((part) => part.key)).size, parts.length);
});

test("a part is another object only when something in it changed", () => {
  const log = turns(40);
  const conversation = fold(log);
  const before = partsOf(conversation.items);
  log.event("assistant.usage", { messageId: "m39", inputTokens: 1, outputTokens: 2 });
  const after = partsOf(fold(log, conversation).items, before);
  assert.deepEqual(after.map((part, index) => part === before[index]), before.map((_, index) => index < before.length - 1));
});

test("no part of another folding is taken for the same", () => {
  const before = partsOf(fold(turns(40)).items);
  const after = partsOf(fold(turns(40)).items, before);
  assert.ok(after.every((part, index) => part !== before[index]));
});
