/** A session's log, written by hand: what a server would have sent, event by event and piece by piece. */

import type { Delta, EventView } from "../src/api/wire.ts";

export class Log {
  readonly frames: ({ event: EventView } | { delta: Delta })[] = [];
  private position = 0;

  event(type: string, data: Record<string, unknown>): this {
    this.position += 1;
    const event = { position: this.position, id: `e${this.position}`, time: 1_000 * this.position, type, version: 1, data };
    this.frames.push({ event });
    return this;
  }

  delta(message_id: string, block: number, offset: number, text: string, more: Partial<Delta> = {}): this {
    this.frames.push({ delta: { message_id, block, kind: "text", offset, text, tool_call_id: "", name: "", ...more } });
    return this;
  }
}

/** A turn with reasoning, a call that asks, its result, and an answer: every piece of it was streamed. */
export function wholeTurn(): Log {
  return new Log()
    .event("session.start", { sessionId: "s", model: "demo" })
    .event("holdfast.turn_started", { turnId: "t1" })
    .event("user.message", { messageId: "u1", turnId: "t1", content: "Write it", delivery: "idle" })
    .event("assistant.turn_start", { turnId: "t1", step: 1, messageId: "m1" })
    .delta("m1", 0, 0, "Hm, ", { kind: "reasoning" })
    .delta("m1", 0, 4, "höm.", { kind: "reasoning" })
    .delta("m1", 1, 0, "I wri")
    .delta("m1", 1, 5, "te 🙂.")
    .delta("m1", 2, 0, '{"path":', { kind: "tool_call", tool_call_id: "c1", name: "create" })
    .delta("m1", 2, 8, '"a.txt"}', { kind: "tool_call", tool_call_id: "c1", name: "create" })
    .event("assistant.message", {
      messageId: "m1",
      blocks: [
        { type: "reasoning", text: "Hm, höm." },
        { type: "text", text: "I write 🙂." },
        { type: "tool_call", toolCallId: "c1", name: "create", arguments: '{"path":"a.txt"}' },
      ],
      model: "demo",
      durationMs: 20,
    })
    .event("tool.execution_start", { toolCallId: "c1", toolName: "create", arguments: '{"path":"a.txt"}' })
    .event("permission.requested", { requestId: "r1", toolCallId: "c1", toolName: "create", kind: "write", subject: "a.txt", rule: "write(a.txt)" })
    .event("holdfast.turn_waiting", { turnId: "t1", reason: "requests", requestIds: ["r1"] })
    .event("permission.completed", { requestId: "r1", toolCallId: "c1", decision: "approved", answeredBy: "ada" })
    .event("holdfast.tool_attempt", { toolCallId: "c1", attempt: 1 })
    .event("tool.execution_complete", { toolCallId: "c1", success: true, content: "Created", durationMs: 3 })
    .event("assistant.turn_end", { turnId: "t1", step: 1 })
    .event("assistant.turn_start", { turnId: "t1", step: 2, messageId: "m2" })
    .delta("m2", 0, 0, "Do")
    .delta("m2", 0, 2, "ne.")
    .event("assistant.message", { messageId: "m2", blocks: [{ type: "text", text: "Done." }], model: "demo" })
    .event("assistant.turn_end", { turnId: "t1", step: 2 })
    .event("holdfast.turn_ended", { turnId: "t1", reason: "completed", durationMs: 900 });
}
