import assert from "node:assert/strict";
import { test } from "node:test";
import type { WaitStatus } from "../src/api/wire.ts";
import { Conversation } from "../src/model/conversation.ts";
import { waited } from "../src/view/wait_words.ts";
import { Log } from "./log.ts";

function status(more: Partial<WaitStatus> = {}): WaitStatus {
  return { awaits: "model", seconds: 10, since: 1_000, attempt: 1, tool_call_id: "", reason: "", until: null, ...more };
}

test("the line counts on by itself from the second that it was told", () => {
  const heard = { status: status({ seconds: 30 }), at: 5_000 };
  assert.equal(waited(heard, 5_000), "Waiting for the model, 30 s");
  assert.equal(waited(heard, 7_900), "Waiting for the model, 32 s");
  assert.equal(waited(heard, 4_000), "Waiting for the model, 30 s", "a clock that goes back");
});

test("a later attempt is counted, and the reason is told in words", () => {
  const again = status({ attempt: 2, reason: "model_unavailable" });
  assert.equal(waited({ status: again, at: 0 }, 0), "Waiting for the model, 10 s · attempt 2 · it was unavailable");
  assert.equal(waited({ status: status({ attempt: 2, reason: "new_code" }), at: 0 }, 0), "Waiting for the model, 10 s · attempt 2");
});

test("a pending retry is counted down, whatever the server's clock says", () => {
  const retry = status({ awaits: "retry", attempt: 3, reason: "model_rate_limited", since: 1_000, until: 46_000 });
  const words = (left: string) => `Calling the model again ${left} · attempt 3 · its provider limits the rate of calls`;
  assert.equal(waited({ status: retry, at: 900_000 }, 900_000), words("in 35 s"));
  assert.equal(waited({ status: retry, at: 900_000 }, 934_500), words("in 1 s"));
  assert.equal(waited({ status: retry, at: 900_000 }, 940_000), words("now"));
});

test("a tool is named, the rest of an answer and a summary are told apart", () => {
  assert.equal(waited({ status: status({ awaits: "tool", seconds: 120 }), at: 0 }, 0, "exec"), "Waiting for exec, 2 min 0 s");
  assert.equal(waited({ status: status({ awaits: "answer" }), at: 0 }, 0), "Waiting for the rest of the answer, 10 s");
  assert.equal(waited({ status: status({ awaits: "compaction" }), at: 0 }, 0), "Waiting for a summary of the conversation, 10 s");
});

test("a status that no newer one follows is dropped, and so is one of a kind that this page does not know", () => {
  assert.equal(waited({ status: status(), at: 0 }, 131_000), null);
  assert.equal(waited({ status: status({ awaits: "moon" as "model" }), at: 0 }, 0), null);
});

test("a status is over when anything comes, and is no part of the conversation", () => {
  const events = new Log();
  events.event("holdfast.turn_started", { turnId: "t1" });
  const [{ event }] = events.frames as [{ event: Parameters<Conversation["event"]>[0] }];
  const conversation = new Conversation();
  conversation.waits(status(), 5);
  assert.deepEqual(conversation.heard, { status: status(), at: 5 });
  assert.deepEqual(conversation.items, []);
  conversation.event(event);
  assert.equal(conversation.heard, null);
  conversation.waits(status(), 5);
  conversation.event(event);
  assert.ok(conversation.heard, "an event that was folded before is nothing new");
  conversation.delta({ message_id: "m", block: 0, kind: "text", offset: 0, text: "Hi", tool_call_id: "", name: "" });
  assert.equal(conversation.heard, null);
});
