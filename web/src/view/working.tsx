/** The current activity of a turn and its duration, also while no text arrives. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Conversation } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { focusRequest } from "./shortcuts.ts";
import { waited } from "./wait_words.ts";
import { duration } from "./words.ts";

const QUIET_MS = 10_000;

/** The current time, updated each second while something runs. */
export function useSeconds(isRunning: boolean): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!isRunning) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, [isRunning]);
  return now;
}

export function Working({ session }: { session: OpenSession }) {
  const drawn = session.drawn.value;
  const { conversation } = session;
  const { turn } = conversation;
  const now = useSeconds(turn !== null);
  const heard = useRef({ drawn, at: Date.now() });
  if (heard.current.drawn !== drawn) heard.current = { drawn, at: Date.now() };
  if (turn === null) return null;
  if (turn.state === "waiting") return <Waiting conversation={conversation} />;
  const waits = conversation.heard && waited(conversation.heard, now, conversation.calls.get(conversation.heard.status.tool_call_id)?.name);
  if (waits) {
    return (
      <p class="working" role="status" aria-live="off">
        <span class="pulse" aria-hidden="true" /> {waits}
      </p>
    );
  }
  const isQuiet = now - heard.current.at >= QUIET_MS && session.line.value === "live";
  return (
    <p class="working" role="status" aria-live="off">
      <span class="pulse" aria-hidden="true" /> {isQuiet && "Still "}
      {isQuiet ? doing(conversation).toLowerCase() : doing(conversation)} · {duration(Math.max(1_000, now - turn.startedAt))}
    </p>
  );
}

function doing({ calls, items, compaction }: Conversation): string {
  const running = [...calls.values()].filter((call) => call.status === "running").map((call) => call.name);
  if (running.length) return `Running ${running.join(", ")}`;
  const last = items.at(-1);
  if (last === compaction && (compaction?.trigger === "full" || compaction?.trigger === "too_long")) return "Waiting for a summary";
  if (last?.kind !== "assistant" || last.state !== "streaming") return "Working";
  const block = last.blocks.at(-1);
  if (!block) return "Working";
  return block.kind === "reasoning" ? "Thinking" : block.kind === "text" ? "Answering" : "Working";
}

function Waiting({ conversation }: { conversation: Conversation }) {
  const count = conversation.openRequests.length;
  if (conversation.turn?.waitingFor !== "requests") return <p class="working">Waiting for a worker that can run this session.</p>;
  return (
    <p class="working">
      <span class="dot waiting" aria-hidden="true" /> {count > 1 ? `Waits for ${count} answers` : "Waits for your answer"}, for as long as it
      takes.{" "}
      <button type="button" class="link" onClick={() => focusRequest()}>
        Show
      </button>
    </p>
  );
}
