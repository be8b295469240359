/** What a turn waits for while nothing comes, in one line. */

import type { WaitStatus } from "../api/wire.ts";
import type { HeardStatus } from "../model/conversation.ts";
import { duration } from "./words.ts";

/** Statuses come at least every minute. Without a newer one for this long, the process that waited may be gone. */
const STALE_MS = 130_000;

const REASONS: Record<string, string> = {
  model_context_exceeded: "the conversation was too long for it",
  model_cut: "the answer broke off",
  model_garbage: "the answer could not be read",
  model_rate_limited: "its provider limits the rate of calls",
  model_timeout: "it did not answer in time",
  model_unavailable: "it was unavailable",
  model_unreachable: "it could not be reached",
};

/** The line; null if the status is stale. */
export function waited({ status, at }: HeardStatus, now: number, toolName = ""): string | null {
  const since = Math.max(0, now - at);
  if (since > STALE_MS) return null;
  const silence = status.seconds * 1_000 + since;
  const time = whole(Math.floor(silence / 1_000));
  switch (status.awaits) {
    case "model":
      return `Waiting for the model, ${time}${again(status)}`;
    case "answer":
      return `Waiting for the rest of the answer, ${time}${again(status)}`;
    case "retry": {
      const left = Math.max(0, (status.until ?? 0) - status.since - silence);
      const when = left ? `in ${whole(Math.ceil(left / 1_000))}` : "now";
      return `Calling the model again ${when}${again(status)}`;
    }
    case "tool":
      return `Waiting for ${toolName || "a tool"}, ${time}${status.attempt > 1 ? ` · attempt ${status.attempt}` : ""}`;
    case "compaction":
      return `Waiting for a summary of the conversation, ${time}${again(status)}`;
    default:
      return null;
  }
}

function again({ attempt, reason }: WaitStatus): string {
  const why = REASONS[reason];
  return `${attempt > 1 ? ` · attempt ${attempt}` : ""}${why ? ` · ${why}` : ""}`;
}

function whole(seconds: number): string {
  return seconds < 60 ? `${seconds} s` : duration(seconds * 1_000);
}
