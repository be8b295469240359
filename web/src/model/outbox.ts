/**
 * Messages that the server has not yet stored. Each gets its id before it is sent, and is kept in this browser until the
 * server has accepted it: after a lost response, a reload or a restart it is sent again under the same id.
 */

import { signal, type Signal } from "@preact/signals";
import { newId, ServerError, type Server } from "../api/server.ts";
import type { MessageFile } from "../api/wire.ts";
import { keep, kept } from "./kept.ts";

export interface Outgoing {
  messageId: string;
  text: string;
  delivery: "steer" | "enqueue" | "interrupt";
  /** The server accepted it; it is shown from here until it appears in the log or in the queue. */
  accepted: boolean;
  files: MessageFile[];
  /** The options of a session that has to be created first. */
  creates: Record<string, unknown> | null;
  options: Record<string, unknown>;
}

export interface Returned {
  text: string;
  files: MessageFile[];
  error: ServerError;
}

const LONGEST_PAUSE_MS = 8_000;

export class Outbox {
  readonly waiting: Signal<Outgoing[]>;
  private isSending = false;
  private hurryUp: () => void = () => {};

  constructor(
    private readonly server: Server,
    private readonly sessionId: string,
    private readonly returned: (returned: Returned) => void,
  ) {
    this.waiting = signal(kept<Outgoing[]>(this.name, []).filter((found) => !found.accepted));
    if (this.waiting.value.length) void this.sendAll();
  }

  private get name(): string {
    return `outbox.${this.sessionId}`;
  }

  add(text: string, more: Partial<Pick<Outgoing, "delivery" | "files" | "creates" | "options">> = {}): string {
    const messageId = newId();
    const message = { messageId, text, delivery: "steer" as const, accepted: false, files: [], creates: null, options: {}, ...more };
    this.set([...this.waiting.value, message]);
    void this.sendAll();
    return messageId;
  }

  /** Drops the messages that the log or the queue now shows. */
  seen(messageIds: Set<string>): void {
    const left = this.waiting.value.filter((message) => !messageIds.has(message.messageId));
    if (left.length !== this.waiting.value.length) this.set(left);
  }

  /** Resolves when no session is left to be created. */
  made(): Promise<void> {
    return new Promise((resolve) => {
      const stop = this.waiting.subscribe((messages) => {
        if (messages.some((message) => message.creates !== null && !message.accepted)) return;
        queueMicrotask(() => stop());
        resolve();
      });
    });
  }

  hurry(): void {
    this.hurryUp();
  }

  private set(messages: Outgoing[]): void {
    this.waiting.value = messages;
    keep(this.name, messages.length ? messages : null);
  }

  /** Sends one after the other, so that they stay in order. */
  private async sendAll(): Promise<void> {
    if (this.isSending) return;
    this.isSending = true;
    let failures = 0;
    try {
      for (;;) {
        const next = this.waiting.value.find((message) => !message.accepted);
        if (!next) return;
        try {
          await this.sendOne(next);
          failures = 0;
        } catch (error) {
          if (!(error instanceof ServerError) || this.isRefused(error)) this.giveBack(next, error);
          else await this.pause((failures += 1), error);
        }
      }
    } finally {
      this.isSending = false;
    }
  }

  private async sendOne(message: Outgoing): Promise<void> {
    if (message.creates) await this.server.create({ id: this.sessionId, ...message.creates });
    await this.server.send(this.sessionId, message);
    this.set(
      this.waiting.value.map((found) => (found.messageId === message.messageId ? { ...found, accepted: true } : found)),
    );
  }

  /** The server refused the message. A 401 is not a refusal: the person can sign in, and the message is sent again. */
  private isRefused(error: ServerError): boolean {
    return error.status === 429 || (!error.isPassing && error.status !== 401);
  }

  private giveBack(message: Outgoing, error: unknown): void {
    this.set(this.waiting.value.filter((found) => found.messageId !== message.messageId));
    const reason = error instanceof ServerError ? error : new ServerError(0, "failed", String(error));
    this.returned({ text: message.text, files: message.files ?? [], error: reason });
  }

  private pause(failures: number, error: ServerError): Promise<void> {
    const wanted = Math.max((error.retryAfter ?? 0) * 1000, Math.min(LONGEST_PAUSE_MS, 250 * 2 ** failures));
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, wanted);
      this.hurryUp = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
