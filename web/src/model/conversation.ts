/**
 * A session's log in the form that people see: messages, tool calls, requests and the ends of turns. It is folded from
 * events and deltas alone, so that a live, a reconnected and a reloaded page look the same. Pure: no DOM, no network.
 */

import type { Delta, EventView, MessageFile, Progress, WaitStatus } from "../api/wire.ts";

export interface TextBlock {
  kind: "text";
  text: string;
}

export interface ReasoningBlock {
  kind: "reasoning";
  text: string;
  /** 0 while the model still thinks, and for interrupted reasoning. */
  durationMs: number;
}

export interface CallBlock {
  kind: "tool_call";
  callId: string;
  name: string;
  arguments: string;
}

export type Block = TextBlock | ReasoningBlock | CallBlock;

/** The items of a conversation. Each has a stable `key`, and a `version` that rises when it changes. */
export type Item = UserItem | AssistantItem | ErrorItem | InfoItem | EndItem | TaskItem | CompactionItem;

interface Common {
  key: string;
  version: number;
  /** Its position in the log; for a message in flight, the position of its step's start. */
  position: number;
  /** Its position when it first appeared; it does not change. */
  place: number;
  time: number;
  turnId: string;
}

export interface UserItem extends Common {
  kind: "user";
  messageId: string;
  text: string;
  delivery: string;
  attachments: Record<string, unknown>[];
  files: MessageFile[];
}

export interface AssistantItem extends Common {
  kind: "assistant";
  messageId: string;
  step: number;
  blocks: Block[];
  /** `streaming`: in flight. `interrupted`: it was sealed, and the text so far stays. */
  state: "streaming" | "whole" | "interrupted";
  model: string;
  durationMs: number;
  usage: Usage | null;
}

export interface Usage {
  inputTokens: number | null;
  outputTokens: number | null;
  reasoningTokens: number | null;
  /** The part of the input that the provider read from its cache. */
  cacheReadTokens: number | null;
  costMicrodollars: number | null;
}

export interface ErrorItem extends Common {
  kind: "error";
  code: string;
  message: string;
  retryable: boolean;
}

export interface InfoItem extends Common {
  kind: "info";
  message: string;
  level: string;
}

export interface EndItem extends Common {
  kind: "end";
  reason: "completed" | "stopped" | "error" | "interrupted";
  durationMs: number;
}

export interface TaskItem extends Common {
  kind: "task";
  taskId: string;
  status: string;
  command: string;
  description: string;
  exitCode: number | null;
  detail: string;
  tail: string;
}

/** A summary takes the place of the older part of the conversation in what the model is sent. People still see all of it. */
export interface CompactionItem extends Common {
  kind: "compaction";
  /** `cut`: the older part was left out without a summary. `failed`: the context stays as it was. */
  state: "running" | "done" | "cut" | "failed";
  /** Why it was made: `full` and `too_long` make the turn wait. */
  trigger: string;
  tokensBefore: number;
  tokensAfter: number;
  summary: string;
  /** How many messages of people the model keeps word for word. */
  kept: number;
  removed: number;
  error: string;
  message: string;
}

/** `asked`: the model called it. `waiting`: it waits for the answer to a request. */
export type CallStatus = "writing" | "asked" | "waiting" | "running" | "done" | "failed" | "denied" | "interrupted";

export interface Call {
  callId: string;
  name: string;
  arguments: string;
  status: CallStatus;
  startedAt: number;
  attempts: number;
  result: string | null;
  error: string | null;
  details: string;
  simulated: boolean;
  durationMs: number;
  progress: string;
  requestId: string | null;
  taskId: string | null;
  flipped: boolean;
}

export interface Asked {
  requestId: string;
  callId: string;
  turnId: string;
  kind: "permission" | "client_tool" | "question";
  openedAt: number;
  toolName: string;
  permissionKind: string;
  subject: string;
  rule: string;
  details: Record<string, unknown>;
  question: string;
  choices: string[];
  allowFreeform: boolean;
  arguments: string;
  open: boolean;
  outcome: string;
  feedback: string;
  answeredBy: string;
}

export interface Turn {
  turnId: string;
  startedAt: number;
  woken: boolean;
  state: "running" | "waiting" | "ended";
  waitingFor: string;
}

/** A status as it was heard: `at` is the page's own time, since the server's clock may differ. */
export interface HeardStatus {
  status: WaitStatus;
  at: number;
}

const MAX_PROGRESS = 20_000;
const bytes = new TextEncoder();

export class Conversation {
  items: Item[] = [];
  readonly calls = new Map<string, Call>();
  readonly requests = new Map<string, Asked>();
  /** The unfinished turn, if any. */
  turn: Turn | null = null;
  title = "";
  model: string | null = null;
  workingDirectory: string | null = null;
  position = 0;
  /** What the turn waits for, while nothing comes. It is not in the log. */
  heard: HeardStatus | null = null;
  /** The tokens of the context, as the provider counted the last call or as a compaction left it; null: not known. */
  contextTokens: number | null = null;
  /** The compaction that is under way. */
  compaction: CompactionItem | null = null;
  /** Rises when items are added or removed, and when anything else than an item changes. */
  version = 0;

  private readonly messages = new Map<string, AssistantItem>();
  private readonly lengths = new Map<string, number>();
  private readonly holders = new Map<string, AssistantItem>();
  private readonly turns = new Map<string, Item[]>();
  /** Whether a message is pinned, for each that was pinned or unpinned. */
  private readonly pins = new Map<string, boolean>();
  /** Calls and requests since the last end of a turn: no others can be open. */
  private readonly recentCalls = new Set<string>();
  private readonly recentRequests = new Set<string>();
  private lastTurnId = "";
  /** For a log that is read from the middle: it begins with a turn; it refers to earlier events; it takes back everything
      after this position; it sets these values itself. */
  private startsWithTurn = false;
  private reachesBack = false;
  private leastKept = Infinity;
  private readonly told = new Set<"title" | "model" | "workingDirectory">();

  /** The items of one turn, in order. */
  ofTurn(turnId: string): Item[] {
    return this.turns.get(turnId) ?? [];
  }

  isPinned(messageId: string): boolean {
    return this.pins.get(messageId) ?? false;
  }

  get openRequests(): Asked[] {
    return [...this.recentRequests].map((id) => this.requests.get(id)).filter((asked): asked is Asked => asked?.open === true);
  }

  /** Fold an event. One that was folded before changes nothing. */
  event(event: EventView): void {
    if (event.position <= this.position) return;
    if (this.position === 0) this.startsWithTurn = event.type === "holdfast.turn_started";
    this.position = event.position;
    this.heard = null;
    this.version += 1;
    const { data } = event;
    switch (event.type) {
      case "session.start":
        this.model = data.model ?? null;
        this.workingDirectory = data.workingDirectory ?? null;
        this.told.add("model").add("workingDirectory");
        break;
      case "session.title_changed":
        this.title = data.title;
        this.told.add("title");
        break;
      case "session.model_change":
        this.model = data.newModel;
        this.told.add("model");
        break;
      case "holdfast.settings_changed":
        if (data.workingDirectory === undefined) break;
        this.workingDirectory = data.workingDirectory;
        this.told.add("workingDirectory");
        break;
      case "session.info":
        this.add({ kind: "info", ...this.place(event), message: data.message, level: data.level ?? "info" });
        break;
      case "session.error":
        this.add({
          kind: "error",
          ...this.place(event),
          code: data.errorType,
          message: data.message,
          retryable: data.retryable ?? false,
        });
        break;
      case "holdfast.truncated":
        this.truncate(data.kept);
        break;
      case "user.message":
        this.said(event);
        break;
      case "assistant.turn_start":
        // A log that is read from the middle begins within a turn.
        this.turn ??= { turnId: data.turnId, startedAt: event.time, woken: false, state: "running", waitingFor: "" };
        this.message(data.messageId, event, data.step ?? 0);
        break;
      case "assistant.message":
        this.finished(event);
        break;
      case "assistant.usage":
        this.used(data);
        break;
      case "holdfast.task_notified":
        this.taskNews(event);
        break;
      case "session.compaction_start":
        this.compactionStarted(event);
        break;
      case "session.compaction_complete":
        this.compactionEnded(event);
        break;
      case "holdfast.message_pinned":
        this.pins.set(data.messageId, data.pinned);
        for (const item of this.items) if (item.kind === "user" && item.messageId === data.messageId) item.version += 1;
        break;
      default:
        this.turnEvent(event);
        this.toolEvent(event);
        this.requestEvent(event);
    }
  }

  /** Fold a delta of the message in flight, without the bytes that are already known. */
  delta(delta: Delta): void {
    const item = this.messages.get(delta.message_id) ?? this.message(delta.message_id, null, 0);
    if (item.state !== "streaming") return;
    this.heard = null;
    const at = `${delta.message_id}/${delta.block}`;
    const known = this.lengths.get(at) ?? 0;
    const fresh = delta.offset >= known ? delta.text : afterBytes(delta.text, known - delta.offset);
    if (!fresh && known > 0) return;
    let block = item.blocks[delta.block];
    if (!block) {
      block = emptyBlock(delta);
      item.blocks[delta.block] = block;
      if (block.kind === "tool_call") this.call(block.callId, block.name, item.time).status = "writing";
      this.version += 1;
    }
    if (block.kind === "tool_call") {
      block.arguments += fresh;
      const call = this.calls.get(block.callId);
      if (call) this.calls.set(block.callId, { ...call, arguments: block.arguments });
    } else block.text += fresh;
    this.lengths.set(at, Math.max(known, delta.offset + bytes.encode(delta.text).length));
    item.version += 1;
  }

  /** Copy the message in flight from another fold of the same log. */
  carryOver(other: Conversation): void {
    this.heard = other.heard;
    for (const [messageId, item] of other.messages) {
      if (item.state !== "streaming") continue;
      const here = this.message(messageId, null, item.step);
      here.blocks = item.blocks;
      for (const [at, length] of other.lengths) if (at.startsWith(`${messageId}/`)) this.lengths.set(at, length);
    }
    for (const [callId, call] of other.calls) {
      const here = this.calls.get(callId);
      if (call.status === "writing") this.calls.set(callId, call);
      else if (here && call.progress) here.progress = call.progress;
    }
  }

  /** Whether the fold of the preceding part of the log can be prepended unchanged: no turn or rewind spans both parts. */
  goesAfter(before: Conversation): boolean {
    return this.startsWithTurn && !this.reachesBack && before.turn === null && before.position <= this.leastKept;
  }

  /** Prepend the preceding part. The result is that of folding the whole log, at the cost of that part alone. */
  putBefore(before: Conversation): void {
    const isTold = (["title", "model", "workingDirectory"] as const).filter((name) => before.told.has(name) && !this.told.has(name));
    for (const name of isTold) Object.assign(this, { [name]: before[name] });
    // Items that were rendered with less information are rendered again.
    if (isTold.length) for (const item of this.items) item.version += 1;
    for (const [turnId, items] of before.turns) {
      const here = this.turns.get(turnId) ?? [];
      for (const item of here) item.version += 1;
      this.turns.set(turnId, [...items, ...here]);
    }
    this.items = [...before.items, ...this.items];
    for (const name of isTold) this.told.add(name);
    for (const item of before.items) if (item.kind === "user" && this.pins.has(item.messageId)) item.version += 1;
    for (const [messageId, isPinned] of before.pins) if (!this.pins.has(messageId)) this.pins.set(messageId, isPinned);
    for (const [callId, call] of before.calls) this.calls.set(callId, call);
    for (const [requestId, asked] of before.requests) this.requests.set(requestId, asked);
    for (const [messageId, item] of before.messages) this.messages.set(messageId, item);
    for (const [callId, item] of before.holders) this.holders.set(callId, item);
    this.startsWithTurn = before.startsWithTurn;
    this.reachesBack = before.reachesBack;
    this.leastKept = Math.min(this.leastKept, before.leastKept);
    this.version += 1;
  }

  /** Nothing came for a while: what the turn waits for, heard at this time. */
  waits(status: WaitStatus, at: number): void {
    this.heard = { status, at };
  }

  progress(progress: Progress): void {
    this.heard = null;
    const call = this.calls.get(progress.tool_call_id);
    if (!call) return;
    call.progress = (call.progress + progress.text).slice(-MAX_PROGRESS);
    this.touchCall(call.callId);
  }

  // Messages

  private said(event: EventView): void {
    const { data } = event;
    this.lastTurnId = data.turnId;
    this.add({
      kind: "user",
      ...this.place(event),
      key: data.messageId,
      turnId: data.turnId,
      messageId: data.messageId,
      text: data.content,
      delivery: data.delivery,
      attachments: data.attachments ?? [],
      files: (data.files ?? []).map(fileOf),
    });
  }

  private message(messageId: string, event: EventView | null, step: number): AssistantItem {
    const known = this.messages.get(messageId);
    if (known) {
      if (event) {
        known.step = step;
        known.time = event.time;
        known.position = event.position;
      }
      return known;
    }
    const item: AssistantItem = {
      kind: "assistant",
      key: messageId,
      version: 0,
      position: event?.position ?? this.position,
      place: event?.position ?? this.position,
      time: event?.time ?? Date.now(),
      turnId: event?.data.turnId ?? this.turn?.turnId ?? this.lastTurnId,
      messageId,
      step,
      blocks: [],
      state: "streaming",
      model: "",
      durationMs: 0,
      usage: null,
    };
    this.messages.set(messageId, item);
    this.add(item);
    return item;
  }

  private finished(event: EventView): void {
    const { data } = event;
    const item = this.message(data.messageId, null, 0);
    item.blocks = (data.blocks as EventView["data"][]).map(blockOf);
    item.state = data.interrupted ? "interrupted" : "whole";
    item.model = data.model ?? "";
    item.durationMs = data.durationMs ?? 0;
    item.position = event.position;
    item.version += 1;
    item.blocks.forEach((block, index) => {
      this.lengths.delete(`${data.messageId}/${index}`);
      if (block.kind !== "tool_call") return;
      const call = this.call(block.callId, block.name, event.time);
      call.arguments = block.arguments;
      if (call.status === "writing") call.status = data.interrupted ? "interrupted" : "asked";
      this.holders.set(block.callId, item);
      this.touchCall(block.callId);
    });
  }

  private used(data: EventView["data"]): void {
    const item = this.messages.get(data.messageId);
    this.reachesBack ||= !item;
    if (data.inputTokens) this.contextTokens = data.inputTokens + (data.outputTokens ?? 0);
    if (!item) return;
    item.usage = {
      inputTokens: data.inputTokens ?? null,
      outputTokens: data.outputTokens ?? null,
      reasoningTokens: data.reasoningTokens ?? null,
      cacheReadTokens: data.cacheReadTokens ?? null,
      costMicrodollars: data.costMicrodollars ?? null,
    };
    item.version += 1;
  }

  /** A summary whose process died is begun again: it stays the same line. */
  private compactionStarted(event: EventView): void {
    const { data } = event;
    if ((data.attempt ?? 1) > 1 && this.compaction) return;
    this.compaction = {
      kind: "compaction",
      ...this.place(event),
      key: data.compactionId,
      state: "running",
      trigger: data.trigger,
      tokensBefore: data.tokens ?? 0,
      tokensAfter: 0,
      summary: "",
      kept: 0,
      removed: 0,
      error: "",
      message: "",
    };
    this.add(this.compaction);
  }

  private compactionEnded(event: EventView): void {
    const { data } = event;
    if (this.compaction?.key !== data.compactionId) {
      this.reachesBack = true;
      this.compaction = null;
      this.compactionStarted(event);
    }
    const item = this.compaction;
    this.compaction = null;
    if (!item) return;
    item.state = !data.success ? "failed" : data.method === "cut" ? "cut" : "done";
    item.tokensBefore = data.tokensBefore ?? item.tokensBefore;
    item.tokensAfter = data.tokensAfter ?? 0;
    item.summary = data.summary ?? "";
    item.kept = data.verbatim?.length ?? 0;
    item.removed = data.removed ?? 0;
    item.error = data.error ?? "";
    item.message = data.message ?? "";
    item.version += 1;
    if (data.success) this.contextTokens = item.tokensAfter || null;
  }

  private taskNews(event: EventView): void {
    const notice = event.data.notice;
    if (notice.silent) return;
    this.add({
      kind: "task",
      ...this.place(event),
      taskId: notice.taskId,
      status: notice.kind,
      command: notice.command,
      description: notice.description ?? "",
      exitCode: notice.exitCode ?? null,
      detail: notice.detail ?? "",
      tail: notice.outputTail ?? "",
    });
  }

  /** A rewind: the conversation continues from this position, and everything after it was taken back. */
  private truncate(kept: number): void {
    this.leastKept = Math.min(this.leastKept, kept);
    this.contextTokens = null;
    if (this.compaction && this.compaction.position > kept) this.compaction = null;
    const gone = this.items.filter((item) => item.position > kept);
    this.items = this.items.filter((item) => item.position <= kept);
    for (const turnId of new Set(gone.map((item) => item.turnId))) {
      this.turns.set(turnId, this.ofTurn(turnId).filter((item) => item.position <= kept));
    }
    for (const item of gone) {
      if (item.kind !== "assistant") continue;
      this.messages.delete(item.messageId);
      for (const block of item.blocks) if (block?.kind === "tool_call") this.calls.delete(block.callId);
    }
    for (const asked of this.requests.values()) {
      if (asked.open && !this.calls.has(asked.callId)) asked.open = false;
    }
  }

  // Turns

  private turnEvent(event: EventView): void {
    const { data } = event;
    switch (event.type) {
      case "holdfast.turn_started":
        this.lastTurnId = data.turnId;
        this.turn = {
          turnId: data.turnId,
          startedAt: event.time,
          woken: data.woken ?? false,
          state: "running",
          waitingFor: "",
        };
        break;
      case "holdfast.turn_waiting":
        if (this.turn) {
          this.turn.state = "waiting";
          this.turn.waitingFor = data.reason;
        }
        break;
      case "holdfast.turn_ended":
        this.turn = null;
        this.add({
          kind: "end",
          ...this.place(event),
          turnId: data.turnId,
          reason: data.reason,
          durationMs: data.durationMs ?? 0,
        });
        this.closeWhatIsOpen();
        break;
      case "holdfast.claimed":
        // A holder that claims a waiting session only to promote a message leaves the turn waiting.
        if (this.turn && this.openRequests.length === 0) this.turn.state = "running";
        break;
    }
  }

  /** Closes everything that is still open in an ended turn. */
  private closeWhatIsOpen(): void {
    for (const asked of this.openRequests) asked.open = false;
    const calls = [...this.recentCalls].flatMap((id) => this.calls.get(id) ?? []);
    for (const call of calls) {
      if (call.status === "running" || call.status === "waiting" || call.status === "asked") {
        call.status = "interrupted";
        this.touchCall(call.callId);
      }
    }
    this.recentCalls.clear();
    this.recentRequests.clear();
  }

  // Tools

  private call(callId: string, name: string, time: number): Call {
    this.recentCalls.add(callId);
    let call = this.calls.get(callId);
    if (!call) {
      call = {
        callId,
        name,
        arguments: "",
        status: "asked",
        startedAt: time,
        attempts: 0,
        result: null,
        error: null,
        details: "",
        simulated: false,
        durationMs: 0,
        progress: "",
        requestId: null,
        taskId: null,
        flipped: false,
      };
      this.calls.set(callId, call);
    }
    if (name) call.name = name;
    return call;
  }

  private toolEvent(event: EventView): void {
    const { data } = event;
    if (!data.toolCallId) return;
    this.reachesBack ||= !this.calls.has(data.toolCallId);
    switch (event.type) {
      case "tool.execution_start":
        this.call(data.toolCallId, data.toolName, event.time).arguments = data.arguments ?? "";
        break;
      case "holdfast.tool_attempt": {
        const call = this.call(data.toolCallId, "", event.time);
        call.status = "running";
        call.attempts = data.attempt;
        call.startedAt = event.time;
        if (this.turn) this.turn.state = "running";
        break;
      }
      case "tool.execution_complete": {
        const call = this.call(data.toolCallId, "", event.time);
        call.status = data.success ? "done" : endOf(data.error);
        call.result = data.content;
        call.error = data.error ?? null;
        call.details = data.details ?? "";
        call.simulated = data.simulated ?? false;
        call.durationMs = data.durationMs ?? 0;
        break;
      }
      case "holdfast.task_started": {
        const call = this.call(data.toolCallId, "", event.time);
        call.taskId = data.taskId;
        call.flipped = data.flipped ?? false;
        break;
      }
      default:
        return;
    }
    this.touchCall(data.toolCallId);
  }

  /** Components compare calls by identity: a changed call becomes a new object. */
  private touchCall(callId: string): void {
    const call = this.calls.get(callId);
    if (call) this.calls.set(callId, { ...call });
    const holder = this.holders.get(callId);
    if (holder) holder.version += 1;
  }

  // Requests

  private requestEvent(event: EventView): void {
    const { data } = event;
    switch (event.type) {
      case "permission.requested":
      case "external_tool.requested":
      case "user_input.requested":
        this.asked(event);
        break;
      case "permission.completed":
        this.answered(data, data.decision);
        break;
      case "external_tool.completed":
      case "user_input.completed":
        this.answered(data, data.cancelled ? "cancelled" : "answered");
        break;
    }
  }

  private asked(event: EventView): void {
    const { data } = event;
    const kinds = { "permission.requested": "permission", "external_tool.requested": "client_tool" } as const;
    this.recentRequests.add(data.requestId);
    this.requests.set(data.requestId, {
      requestId: data.requestId,
      callId: data.toolCallId,
      turnId: this.turn?.turnId ?? this.lastTurnId,
      kind: kinds[event.type as keyof typeof kinds] ?? "question",
      openedAt: event.time,
      toolName: data.toolName ?? "",
      permissionKind: data.kind ?? "",
      subject: data.subject ?? "",
      rule: data.rule ?? "",
      details: data.details ?? {},
      question: data.question ?? "",
      choices: data.choices ?? [],
      allowFreeform: data.allowFreeform ?? true,
      arguments: data.arguments ?? "",
      open: true,
      outcome: "",
      feedback: "",
      answeredBy: "",
    });
    const call = this.call(data.toolCallId, data.toolName ?? "", event.time);
    call.status = "waiting";
    call.requestId = data.requestId;
    this.touchCall(data.toolCallId);
  }

  private answered(data: EventView["data"], outcome: string): void {
    const asked = this.requests.get(data.requestId);
    this.reachesBack ||= !asked;
    if (!asked) return;
    this.requests.set(data.requestId, {
      ...asked,
      open: false,
      outcome,
      feedback: data.feedback ?? data.answer ?? "",
      answeredBy: data.answeredBy ?? "",
    });
    const call = this.calls.get(asked.callId);
    if (call?.status === "waiting") call.status = outcome.startsWith("denied") ? "denied" : "asked";
    if (this.turn && this.openRequests.length === 0) this.turn.state = "running";
    this.touchCall(asked.callId);
  }

  private place(event: EventView): Common {
    return {
      key: event.id,
      version: 0,
      position: event.position,
      place: event.position,
      time: event.time,
      turnId: this.turn?.turnId ?? this.lastTurnId,
    };
  }

  private add(item: Item): void {
    this.items.push(item);
    const turn = this.turns.get(item.turnId);
    if (turn) turn.push(item);
    else this.turns.set(item.turnId, [item]);
    this.version += 1;
  }
}

function emptyBlock(delta: Delta): Block {
  if (delta.kind === "tool_call") {
    return { kind: "tool_call", callId: delta.tool_call_id, name: delta.name, arguments: "" };
  }
  return delta.kind === "reasoning" ? { kind: "reasoning", text: "", durationMs: 0 } : { kind: "text", text: "" };
}

function blockOf(data: EventView["data"]): Block {
  if (data.type === "tool_call") {
    return { kind: "tool_call", callId: data.toolCallId ?? "", name: data.name ?? "", arguments: data.arguments ?? "" };
  }
  if (data.type === "reasoning") return { kind: "reasoning", text: data.text ?? "", durationMs: data.durationMs ?? 0 };
  return { kind: "text", text: data.text ?? "" };
}

/** The usage of all model calls of a turn. A figure that one call did not report is unknown. */
export function usageOf(items: Item[], turnId: string): Usage | null {
  const used = items.flatMap((item) => (item.kind === "assistant" && item.turnId === turnId && item.usage ? [item.usage] : []));
  const sum = (name: keyof Usage): number | null =>
    used.reduce<number | null>((total, usage) => (total === null || usage[name] === null ? null : total + usage[name]), 0);
  if (used.length === 0) return null;
  return {
    inputTokens: sum("inputTokens"),
    outputTokens: sum("outputTokens"),
    reasoningTokens: sum("reasoningTokens"),
    cacheReadTokens: sum("cacheReadTokens"),
    costMicrodollars: sum("costMicrodollars"),
  };
}

function endOf(error: string | undefined): CallStatus {
  if (error === "denied" || error === "rejected") return "denied";
  return error === "interrupted" ? "interrupted" : "failed";
}

/** The text without its first `count` bytes of UTF-8. Pieces are cut between characters. */
function afterBytes(text: string, count: number): string {
  return new TextDecoder().decode(bytes.encode(text).slice(count));
}

/** A file of a message, as the log has it. */
function fileOf(file: { fileId: string; name: string; mediaType: string; size: number }): MessageFile {
  return { id: file.fileId, name: file.name, media_type: file.mediaType, size: file.size };
}
