/**
 * A session's log as a picture: its holders, the work of the model, the tools and the people, and the interruptions. The
 * distance between two events is the logarithm of the time between them, so that long pauses are short.
 */

import type { EventView } from "../api/wire.ts";

export const LANES = ["holder", "turn", "model", "tools", "people", "tasks"] as const;
export type Lane = (typeof LANES)[number];

export interface Span {
  lane: Lane;
  /** Spans that overlap in time are in different rows. */
  row: number;
  from: number;
  /** Null: it has not ended. */
  to: number | null;
  label: string;
  tone: "plain" | "good" | "bad" | "cut" | "waiting" | "holder" | "other-holder";
  detail: string;
  position: number;
}

export interface Mark {
  time: number;
  kind: "crash" | "hand-over" | "stop" | "error" | "retry" | "rewind" | "message";
  label: string;
  position: number;
}

export interface Timeline {
  spans: Span[];
  marks: Mark[];
  times: number[];
  /** How many rows each lane needs. */
  rows: Record<Lane, number>;
}

export function timelineOf(log: EventView[]): Timeline {
  return new Drawing().draw(log);
}

/** Events that only a holder writes: after a wait, the session has a holder again. */
const RESUMING = new Set([
  "permission.completed",
  "external_tool.completed",
  "user_input.completed",
  "assistant.turn_start",
  "holdfast.tool_attempt",
]);

class Drawing {
  private readonly spans: Span[] = [];
  private readonly marks: Mark[] = [];
  private readonly open = new Map<string, Span>();
  private readonly names = new Map<string, string>();
  private holders = 0;

  draw(log: EventView[]): Timeline {
    for (const event of log) this.take(event);
    const rows = Object.fromEntries(LANES.map((lane) => [lane, this.placed(lane)])) as Record<Lane, number>;
    return { spans: this.spans, marks: this.marks, times: [...new Set(log.map((event) => event.time))].sort((a, b) => a - b), rows };
  }

  private take(event: EventView): void {
    const { data } = event;
    if (RESUMING.has(event.type) && this.open.has("turn") && !this.open.has("holder")) {
      this.begin("holder", "holder", event, "held again", this.holders % 2 ? "other-holder" : "holder");
    }
    switch (event.type) {
      case "holdfast.turn_started":
        this.begin("turn", "turn", event, data.woken ? "woken by a task" : "turn");
        this.begin("holder", "holder", event, "first holder", this.holders % 2 ? "other-holder" : "holder");
        break;
      case "holdfast.turn_ended":
        this.end("turn", event, data.reason === "completed" ? "good" : data.reason === "stopped" ? "cut" : "bad", data.reason);
        this.end("holder", event);
        break;
      case "holdfast.turn_waiting":
        this.end("holder", event, undefined, "let go of: nothing is held while it waits");
        break;
      case "holdfast.claimed":
        this.claimed(event);
        break;
      case "user.message":
        this.mark("message", event, data.delivery === "steering" ? "follow-up" : "message");
        break;
      case "assistant.turn_start":
        this.begin("model", `model ${data.messageId}`, event, `step ${data.step}`);
        break;
      case "assistant.message":
        this.end(`model ${data.messageId}`, event, data.interrupted ? "cut" : "good", data.model ?? "");
        break;
      case "model.call_failure":
        this.mark("retry", event, data.message);
        break;
      case "holdfast.sealed":
        if (data.cause === "crash") this.mark("crash", event, "the process died while the model spoke");
        this.begin("model", `model ${data.nextMessageId}`, event, "asked again");
        break;
      case "session.error":
        this.mark("error", event, data.message);
        break;
      case "abort":
        this.mark("stop", event, data.reason);
        break;
      case "holdfast.truncated":
        this.mark("rewind", event, `back to ${data.kept}`);
        break;
      default:
        this.toolsAndPeople(event);
    }
  }

  /** Another holder: the work of the last one was interrupted here, or handed over. */
  private claimed(event: EventView): void {
    const wasHeld = this.open.has("holder");
    this.end("holder", event);
    this.holders += 1;
    const tone = this.holders % 2 ? "other-holder" : "holder";
    this.begin("holder", "holder", event, `fence ${event.data.fence} on ${event.data.node}`, tone);
    if (wasHeld) this.mark("hand-over", event, `taken over with fence ${event.data.fence}`);
  }

  private toolsAndPeople(event: EventView): void {
    const { data } = event;
    switch (event.type) {
      case "tool.execution_start":
        this.names.set(data.toolCallId, data.toolName);
        break;
      case "holdfast.tool_attempt":
        this.end(`tool ${data.toolCallId}`, event, "cut", "outcome unknown");
        this.begin("tools", `tool ${data.toolCallId}`, event, this.names.get(data.toolCallId) ?? "tool", "plain", data.attempt > 1 ? `attempt ${data.attempt}` : "");
        break;
      case "tool.execution_complete":
        this.end(`tool ${data.toolCallId}`, event, data.success ? "good" : "bad", data.error ?? "");
        break;
      case "permission.requested":
      case "external_tool.requested":
      case "user_input.requested":
        this.begin("people", `request ${data.requestId}`, event, data.subject ?? data.question ?? data.toolName ?? "request", "waiting");
        break;
      case "permission.completed":
      case "external_tool.completed":
      case "user_input.completed":
        this.end(`request ${data.requestId}`, event, "good", [data.decision, data.answeredBy && `by ${data.answeredBy}`].filter(Boolean).join(" "));
        break;
      case "holdfast.task_started":
        this.begin("tasks", `task ${data.taskId}`, event, data.description || data.command);
        break;
      case "holdfast.task_notified":
        if (data.notice.kind !== "stalled") {
          this.end(`task ${data.notice.taskId}`, event, data.notice.kind === "completed" ? "good" : "bad", data.notice.kind);
        }
        break;
    }
  }

  private begin(lane: Lane, key: string, event: EventView, label: string, tone: Span["tone"] = "plain", detail = ""): void {
    const span = { lane, row: 0, from: event.time, to: null, label, tone, detail, position: event.position };
    this.spans.push(span);
    this.open.set(key, span);
  }

  private end(key: string, event: EventView, tone?: Span["tone"], detail = ""): void {
    const span = this.open.get(key);
    if (!span) return;
    this.open.delete(key);
    span.to = event.time;
    if (tone) span.tone = tone;
    if (detail) span.detail = [span.detail, detail].filter(Boolean).join(", ");
  }

  private mark(kind: Mark["kind"], event: EventView, label: string): void {
    this.marks.push({ time: event.time, kind, label, position: event.position });
  }

  /** Give each span of a lane the first free row, and return the number of rows. */
  private placed(lane: Lane): number {
    const freeFrom: number[] = [];
    for (const span of this.spans) {
      if (span.lane !== lane) continue;
      let row = freeFrom.findIndex((time) => time <= span.from);
      if (row < 0) row = freeFrom.length;
      span.row = row;
      freeFrom[row] = span.to ?? Infinity;
    }
    return Math.max(1, freeFrom.length);
  }
}

export interface Break {
  x: number;
  ms: number;
}

/** The place of a moment in the picture, the picture's width, and the pauses that were shortened. */
export class Scale {
  readonly width: number;
  readonly breaks: Break[] = [];
  private readonly xs: number[];

  constructor(
    private readonly times: number[],
    { unit = 9, finestMs = 25, longMs = 10_000 } = {},
  ) {
    let x = 0;
    this.xs = times.map((time, index) => {
      const passed = index === 0 ? 0 : time - times[index - 1]!;
      const step = unit * Math.log2(1 + passed / finestMs);
      if (passed >= longMs) this.breaks.push({ x: x + step / 2, ms: passed });
      x += step;
      return x;
    });
    this.width = x;
  }

  x(time: number): number {
    let low = 0;
    let high = this.times.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.times[middle]! < time) low = middle + 1;
      else high = middle;
    }
    return this.xs[low] ?? 0;
  }
}
