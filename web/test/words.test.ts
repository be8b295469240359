import assert from "node:assert/strict";
import { test } from "node:test";
import { Conversation, usageOf, type Turn } from "../src/model/conversation.ts";
import { reordered, whenOf } from "../src/view/queue_chips.tsx";
import { beginningOf, fitsTheQuestion, meaningOf, outcomeOf, partsOf, pretty, summaryOf } from "../src/view/tool_words.ts";
import { money } from "../src/view/turn_figures.tsx";
import { Log } from "./log.ts";

test("a call is summed up by what it is about, also while it is being written", () => {
  assert.equal(summaryOf({ arguments: '{"path":"a.txt","file_text":"x"}' }), "a.txt");
  assert.equal(summaryOf({ arguments: '{"timeout":1,"command":"ls\\n -la \\"x' }), 'ls -la "x');
  assert.equal(summaryOf({ arguments: '{"command":"a\\u00e9\\u00' }), "aé");
  assert.equal(summaryOf({ arguments: '{"count": 3}' }), '{"count": 3}');
  assert.equal(summaryOf({ arguments: '{"says":"a \\"path\\": b"}' }), '{"says":"a \\"path\\": b"}');
  assert.equal(summaryOf({ arguments: "" }), "");
});

test("a call of megabytes is summed up by its beginning", () => {
  const summary = summaryOf({ arguments: `{"command":"${"y".repeat(5_000_000)}"}` });
  assert.equal(summary, "y".repeat(200));
});

test("a long text is cut between characters", () => {
  assert.equal(beginningOf("ab🙂cd", 3), "ab");
  assert.equal(beginningOf("ab🙂cd", 4), "ab🙂");
  assert.equal(beginningOf("abc", 3), "abc");
});

test("JSON is laid out, and anything else left alone", () => {
  assert.equal(pretty('{"a":[1]}'), '{\n  "a": [\n    1\n  ]\n}');
  assert.equal(pretty('{"a":'), '{"a":');
});

test("what is granted is said in words", () => {
  const of = (permissionKind: string, rule: string, toolName = "t"): string => meaningOf({ permissionKind, rule, toolName });
  assert.equal(of("write", "write"), "write any file in the working directory");
  assert.equal(of("write", "write(/etc/motd)"), "write to this very path");
  assert.equal(of("read", "read(/etc/motd)"), "read this very path");
  assert.equal(of("shell", "shell(make build)"), "run this very command");
  assert.equal(of("custom-tool", "custom-tool(lookup)", "lookup"), "use lookup");
  assert.equal(of("shell", "shell"), "do what the rule shell covers");
});

test("what has to be read before it is allowed is all of it", () => {
  const of = (permissionKind: string, subject: string, diff: string, given: string): string[] =>
    partsOf({ permissionKind, subject, details: diff ? { diff } : {} }, given).map(({ text }) => text);
  const given = JSON.stringify({ path: "a.txt", file_text: "hi" });
  assert.deepEqual(of("shell", "ls", "", '{"command":"ls"}'), ["ls"]);
  assert.deepEqual(of("write", "a.txt", "--- a\n+++ b\n+hi\n", given), ["--- a\n+++ b\n+hi\n"]);
  assert.deepEqual(of("write", "a.txt", "(too much to be shown: 1 characters become 2)", given).at(-1), pretty(given));
  assert.deepEqual(of("write", "a.txt", "+hi\n(… and more)\n", given).at(-1), pretty(given));
  assert.deepEqual(of("write", "a.txt", "+(… and more)\n", given), ["+(… and more)\n"]);
  assert.deepEqual(of("write", "a.txt", "", given), [pretty(given)]);
  assert.deepEqual(of("custom-tool", "deploy", "", '{"to":"prod"}'), [pretty('{"to":"prod"}')]);
  assert.deepEqual(of("write", "a\nb", "+hi\n", given), ["a\nb", "+hi\n"]);
});

test("a name that grows by its escapes does not fit the question", () => {
  const of = (subject: string): boolean => fitsTheQuestion({ permissionKind: "write", subject });
  assert.equal(of("a".repeat(160)), true);
  assert.equal(of("\u202e".repeat(27)), false);
});

test("words about a call hide nothing", () => {
  assert.equal(summaryOf({ arguments: '{"path":"a\u202etxt.exe"}' }), "a\\u202etxt.exe");
  assert.equal(meaningOf({ permissionKind: "custom-tool", rule: "r", toolName: "a\u200bb" }), "use a\\u200bb");
});

test("an answer is told with who gave it and why, and the one person of a local server needs no name", () => {
  const of = (outcome: string, answeredBy = "local", feedback = ""): string =>
    outcomeOf({ kind: "permission", outcome, answeredBy, feedback });
  assert.equal(of("approved"), "Allowed once");
  assert.equal(of("approved-for-session", "ada"), "Allowed from now on by ada");
  assert.equal(of("denied-interactively-by-user", "ada", "Not now"), "Denied by ada: “Not now”");
  assert.equal(of("denied-no-approval-rule-and-could-not-request-from-user", ""), "Denied: no person could be asked");
  assert.equal(of("cancelled", ""), "Not answered");
  assert.equal(outcomeOf({ kind: "question", outcome: "answered", answeredBy: "", feedback: "red" }), "Answered: “red”");
  assert.equal(outcomeOf({ kind: "client_tool", outcome: "answered", answeredBy: "local", feedback: "" }), "");
});

test("a message that waits is moved, and says when it will be read", () => {
  assert.deepEqual(reordered(["a", "b", "c"], 2, 0), ["c", "a", "b"]);
  assert.deepEqual(reordered(["a", "b", "c"], 0, 1), ["b", "a", "c"]);
  const turn: Turn = { turnId: "t", startedAt: 0, woken: false, state: "running", waitingFor: "" };
  assert.equal(whenOf({ delivery: "steer" }, turn), "joins at the next step");
  assert.equal(whenOf({ delivery: "steer" }, { ...turn, state: "waiting" }), "joins when it goes on");
  assert.equal(whenOf({ delivery: "enqueue" }, turn), "next turn");
  assert.equal(whenOf({ delivery: "steer" }, null), "waits for its turn");
});

test("money has the digits that say something", () => {
  assert.deepEqual([1, 3_100, 250_000, 12_340_000].map(money), ["$0.0000010", "$0.0031", "$0.25", "$12.34"]);
});

function turnWith(...usages: Record<string, unknown>[]): Conversation {
  const log = new Log().event("holdfast.turn_started", { turnId: "t1" });
  usages.forEach((usage, index) => {
    const messageId = `m${index}`;
    log.event("assistant.turn_start", { turnId: "t1", step: index + 1, messageId });
    log.event("assistant.message", { messageId, blocks: [{ type: "reasoning", text: "Hm.", durationMs: 40 }] });
    log.event("assistant.usage", { messageId, ...usage });
  });
  const conversation = new Conversation();
  for (const frame of log.frames) if ("event" in frame) conversation.event(frame.event);
  return conversation;
}

test("a turn used what its calls used, and what one of them does not know is not known", () => {
  const known = { inputTokens: 10, outputTokens: 2, costMicrodollars: 5 };
  const both = usageOf(turnWith(known, known).items, "t1");
  assert.deepEqual([both?.inputTokens, both?.outputTokens, both?.costMicrodollars], [20, 4, 10]);
  const half = usageOf(turnWith(known, { inputTokens: 1 }).items, "t1");
  assert.deepEqual([half?.inputTokens, half?.outputTokens], [11, null]);
  assert.equal(usageOf(turnWith(known).items, "t2"), null);
});

test("reasoning has the duration that the log gives it", () => {
  const [item] = turnWith({}).items;
  assert.deepEqual(item?.kind === "assistant" && item.blocks, [{ kind: "reasoning", text: "Hm.", durationMs: 40 }]);
});
