/**
 * Follows the event stream of the open session. After a lost connection it continues at the last id that it received, if
 * necessary in the middle of a word: nothing is missed and nothing comes twice.
 */

import { FrameReader, type Frame } from "./frames.ts";
import { at, ServerError, type Server } from "./server.ts";

/** `live`: connected. `broken`: the connection was lost and is retried. `gone`: the session no longer exists. */
export type Line = "connecting" | "live" | "broken" | "refused" | "gone";

export interface Heard {
  frames(frames: Frame[]): void;
  line(line: Line, error: ServerError | null): void;
}

const SILENCE_MS = 25_000;
/** A tab that becomes visible again reconnects after this long without a byte: the server sends one every ten seconds. */
const DOUBTFUL_MS = 12_000;
const LONGEST_PAUSE_MS = 8_000;

export class Following {
  private readonly ended = new AbortController();
  private attempt = new AbortController();
  private wake: () => void = () => {};
  private failures = 0;
  private heardAt = Date.now();

  constructor(
    private readonly server: Server,
    private readonly sessionId: string,
    private cursor: string,
    private readonly heard: Heard,
  ) {
    addEventListener("online", this.again);
    document.addEventListener("visibilitychange", this.hurryIfSeen);
    void this.run();
  }

  close(): void {
    this.ended.abort();
    this.attempt.abort();
    this.wake();
    removeEventListener("online", this.again);
    document.removeEventListener("visibilitychange", this.hurryIfSeen);
  }

  /** Reconnect now: the person came back, or asked for it. */
  readonly hurry = (): void => {
    if (Date.now() - this.heardAt > DOUBTFUL_MS) this.attempt.abort();
    this.wake();
  };

  /** The network came back, perhaps another one: the old connection may be dead without an error. */
  private readonly again = (): void => {
    this.attempt.abort();
    this.wake();
  };

  private readonly hurryIfSeen = (): void => {
    if (!document.hidden) this.hurry();
  };

  private async run(): Promise<void> {
    this.heard.line("connecting", null);
    while (!this.ended.signal.aborted) {
      let error: ServerError | null = null;
      try {
        await this.readOnce();
      } catch (thrown) {
        error = thrown instanceof ServerError ? thrown : null;
      }
      if (this.ended.signal.aborted) return;
      if (error?.status === 404) {
        this.heard.line("gone", error);
        return;
      }
      this.failures += 1;
      this.heard.line(error?.status === 401 || error?.status === 403 ? "refused" : "broken", error);
      await this.pause(error?.retryAfter ?? null);
    }
  }

  private async readOnce(): Promise<void> {
    this.attempt = new AbortController();
    const watch = new Watch(SILENCE_MS, () => this.attempt.abort());
    try {
      const response = await this.server.request("GET", `${at(this.sessionId)}/events`, undefined, {
        headers: { accept: "text/event-stream", "last-event-id": this.cursor },
        signal: this.attempt.signal,
      });
      const body = response.body?.getReader();
      if (!body) return;
      const reader = new FrameReader();
      let isLive = false;
      for (;;) {
        const { done, value } = await body.read();
        if (done) return;
        watch.touch();
        this.heardAt = Date.now();
        if (!isLive) {
          isLive = true;
          this.failures = 0;
          this.heard.line("live", null);
        }
        this.take(reader.push(value));
      }
    } finally {
      watch.stop();
      this.attempt.abort();
    }
  }

  private take(frames: Frame[]): void {
    if (frames.length === 0) return;
    this.heard.frames(frames);
    for (const frame of frames) if (frame.id !== null) this.cursor = frame.id;
  }

  /** The delay grows with each retry, so that not all clients reach a restarted server at once. */
  private pause(retryAfter: number | null): Promise<void> {
    const grown = Math.min(LONGEST_PAUSE_MS, 250 * 2 ** Math.min(this.failures, 6));
    const wanted = Math.max(grown * (0.5 + Math.random() / 2), (retryAfter ?? 0) * 1000);
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, wanted);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** Calls back after this long without a byte: the server sends one at least every ten seconds. */
class Watch {
  private timer: ReturnType<typeof setTimeout>;

  constructor(
    private readonly silenceMs: number,
    private readonly tooLong: () => void,
  ) {
    this.timer = setTimeout(tooLong, silenceMs);
  }

  touch(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(this.tooLong, this.silenceMs);
  }

  stop(): void {
    clearTimeout(this.timer);
  }
}
