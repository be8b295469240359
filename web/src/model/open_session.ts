/** The open session: its conversation, its queue, and the state of the connection. */

import { signal, type Signal } from "@preact/signals";
import { Following, type Line } from "../api/following.ts";
import type { Frame } from "../api/frames.ts";
import type { Server, ServerError } from "../api/server.ts";
import type { Delta, EventView, Progress, QueuedView, WaitStatus } from "../api/wire.ts";
import { Conversation } from "./conversation.ts";

/** How much of a long log is read at first; earlier events are read when the person scrolls up. */
const FIRST_EVENTS = 1_500;
/** A page of this size is read, folded and rendered without a visible delay. */
const PAGE_EVENTS = 250;
/** How long folding may run before it yields: well within a frame. */
const FOLDING_MS = 4;
/** How many events are folded between two looks at the clock. */
const EVENTS_AT_ONCE = 200;

export class OpenSession {
  /** Rises with every change that has to be rendered, at most once per frame. */
  readonly drawn: Signal<number> = signal(0);
  readonly line: Signal<Line> = signal<Line>("connecting");
  readonly error: Signal<ServerError | null> = signal<ServerError | null>(null);
  readonly queue: Signal<QueuedView[]> = signal<QueuedView[]>([]);
  readonly deleted: Signal<boolean> = signal(false);
  /** The log has been read up to the head that it had when the session was opened. */
  readonly loaded: Signal<boolean> = signal(false);
  /** The first position that was read; earlier events exist and are not loaded. */
  readonly firstPosition: Signal<number> = signal(1);
  conversation = new Conversation();
  /** The events in order, for the timeline. */
  log: EventView[] = [];

  private following: Following | null = null;
  private isScheduled = false;
  private target = 0;

  constructor(
    private readonly server: Server,
    readonly id: string,
    private readonly heardNews: (session: OpenSession) => void = () => {},
  ) {}

  /** `head` is the last known position of the log. */
  open(head: number): void {
    const after = Math.max(0, head - FIRST_EVENTS);
    this.firstPosition.value = after + 1;
    this.target = head;
    this.loaded.value = head === 0;
    this.following = new Following(this.server, this.id, String(after), {
      frames: (frames) => this.take(frames),
      line: (line, error) => {
        this.line.value = line;
        this.error.value = error;
        if (line !== "live") this.conversation.heard = null;
        if (line === "gone") this.deleted.value = true;
      },
    });
  }

  close(): void {
    this.following?.close();
    this.following = null;
  }

  hurry(): void {
    this.following?.hurry();
  }

  /** Read the preceding page of the log, from the first turn that begins in it. */
  async older(): Promise<void> {
    const first = this.firstPosition.value;
    if (first <= 1) return;
    const after = Math.max(0, first - 1 - PAGE_EVENTS);
    const { events } = await this.server.events(this.id, after, first - 1 - after);
    const turn = after === 0 ? 0 : events.findIndex((event) => event.type === "holdfast.turn_started");
    const page = events.slice(Math.max(0, turn)).filter((event) => event.position < first);
    const before = await folded(page);
    this.log = [...page, ...this.log];
    if (this.conversation.goesAfter(before)) this.conversation.putBefore(before);
    else await this.foldAnew();
    this.firstPosition.value = turn > 0 ? page[0]!.position : after + 1;
    this.draw();
  }

  /** If a turn or a rewind spans the border of the page, the whole log is folded again, which takes longer. */
  private async foldAnew(): Promise<void> {
    const further = await folded(this.log);
    for (const event of this.log) further.event(event); // New events may have arrived meanwhile; known ones change nothing.
    further.carryOver(this.conversation);
    this.conversation = further;
  }

  private take(frames: Frame[]): void {
    for (const frame of frames) this.takeOne(frame);
    if (this.conversation.position >= this.target) this.loaded.value = true;
    this.draw();
  }

  private takeOne(frame: Frame): void {
    const data: unknown = JSON.parse(frame.data);
    switch (frame.event) {
      case "event":
        if ((data as EventView).position > this.conversation.position) this.log.push(data as EventView);
        this.conversation.event(data as EventView);
        break;
      case "delta":
        this.conversation.delta(data as Delta);
        break;
      case "progress":
        this.conversation.progress(data as Progress);
        break;
      case "status":
        this.conversation.waits(data as WaitStatus, Date.now());
        break;
      case "queue":
        this.queue.value = (data as { messages: QueuedView[] }).messages;
        break;
      case "deleted":
        this.deleted.value = true;
        this.close();
        break;
    }
  }

  /** Once per frame; in a hidden tab, which has no frames, by a timer. */
  private draw(): void {
    if (this.isScheduled) return;
    this.isScheduled = true;
    const now = (): void => {
      this.isScheduled = false;
      this.drawn.value += 1;
      this.heardNews(this);
    };
    if (document.hidden) setTimeout(now, 100);
    else requestAnimationFrame(now);
  }
}

/** Folds the same log from an earlier position, with the events that arrive meanwhile. It yields to the page regularly. */
async function folded(log: EventView[]): Promise<Conversation> {
  const conversation = new Conversation();
  let started = performance.now();
  for (let at = 0; at < log.length; at += 1) {
    if (at % EVENTS_AT_ONCE === EVENTS_AT_ONCE - 1 && performance.now() - started > FOLDING_MS) {
      await new Promise((resolve) => setTimeout(resolve));
      started = performance.now();
    }
    conversation.event(log[at]!);
  }
  return conversation;
}
