/** That something is going on, for how long, and what: also when nothing is said for a while. */

import { useEffect, useState } from "preact/hooks";
import type { OpenSession } from "../model/open_session.ts";
import { duration } from "./words.ts";

export function Working({ session }: { session: OpenSession }) {
  session.drawn.value;
  const { turn, items, calls } = session.conversation;
  const [now, setNow] = useState(Date.now);
  const isRunning = turn !== null && turn.state === "running";
  useEffect(() => {
    if (!isRunning) return;
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, [isRunning]);
  if (turn === null) return null;
  if (turn.state === "waiting") {
    return <p class="working">{turn.waitingFor === "requests" ? "Waits for an answer." : "Waits for a worker that can run it."}</p>;
  }
  const running = [...calls.values()].filter((call) => call.status === "running").map((call) => call.name);
  const last = items.at(-1);
  const isTalking = last?.kind === "assistant" && last.state === "streaming" && last.blocks.length > 0;
  const words = running.length ? `Running ${running.join(", ")}` : isTalking ? "Answering" : "Working";
  return (
    <p class="working" role="status" aria-live="off">
      <span class="pulse" aria-hidden="true" /> {words} · {duration(Math.max(1_000, now - turn.startedAt))}
    </p>
  );
}
