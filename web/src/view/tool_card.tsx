/** A tool call: its summary and state, with all details on demand. Its request is shown inside of it. */

import { useMemo, useState } from "preact/hooks";
import type { Call, CallStatus } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { visible, visibleLine } from "./escapes.ts";
import { Icon } from "./icons.tsx";
import { LongCode } from "./long_code.tsx";
import { RequestCard } from "./request_card.tsx";
import { outcomeOf, pretty, summaryOf } from "./tool_words.ts";
import { duration } from "./words.ts";
import { useSeconds } from "./working.tsx";

const STATUS: Record<CallStatus, string> = {
  writing: "being written",
  asked: "next",
  waiting: "waits for you",
  running: "running",
  done: "done",
  failed: "failed",
  denied: "not allowed",
  interrupted: "interrupted",
};

const SHOWN_LINES = 12;

export function ToolCard({ call, session }: { call: Call; session: OpenSession }) {
  const [isOpen, setOpen] = useState(false);
  const asked = call.requestId ? session.conversation.requests.get(call.requestId) : undefined;
  const status = call.flipped && call.status === "done" ? "goes on in the background" : STATUS[call.status];
  const outcome = asked && !asked.open && asked.outcome ? outcomeOf(asked) : "";
  const summary = useMemo(() => summaryOf(call), [call.arguments]);
  return (
    <section class={`tool ${call.status}`} data-call={call.callId} aria-label={`${visibleLine(call.name)}: ${status}`}>
      <button type="button" class="tool-head" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <span class={`dot ${call.status}`} aria-hidden="true" />
        <span class="tool-name">{visibleLine(call.name)}</span>
        <span class="tool-summary">{summary}</span>
        <span class="tool-status">
          {status}
          {call.simulated && ", simulated"}
          {call.status === "running" && <RunningFor since={call.startedAt} />}
          {call.durationMs > 0 && ` · ${duration(call.durationMs)}`}
        </span>
        <Icon name="chevron" class={isOpen ? "open" : ""} />
      </button>
      {call.status === "running" && call.progress && <LiveOutput text={call.progress} />}
      {asked?.open && <RequestCard asked={asked} session={session} given={call.arguments} />}
      {outcome && (
        <p class="aside" dir="auto">
          {outcome}
        </p>
      )}
      {call.taskId && <TaskLink />}
      {isOpen && <Details call={call} />}
    </section>
  );
}

/** The elapsed time, for calls that take longer than a moment. */
function RunningFor({ since }: { since: number }) {
  const passed = useSeconds(true) - since;
  return passed >= 2_000 ? <> · {duration(passed)}</> : null;
}

function TaskLink() {
  const app = useApp();
  return (
    <p class="aside">
      <button type="button" class="link" onClick={() => (app.panel.value = "tasks")}>
        Follow it in the tasks panel
      </button>
    </p>
  );
}

/** The last lines of its output while it runs. */
function LiveOutput({ text }: { text: string }) {
  return <pre class="live-output">{visible(text).split("\n").slice(-SHOWN_LINES).join("\n")}</pre>;
}

function Details({ call }: { call: Call }) {
  const input = useMemo(() => pretty(call.arguments), [call.arguments]);
  return (
    <div class="tool-details">
      <h4>Input</h4>
      <LongCode text={input} language="json" />
      {call.details && (
        <>
          <h4>Changes</h4>
          <LongCode text={call.details} language="diff" />
        </>
      )}
      {call.result !== null && (
        <>
          <h4>{call.error ? `Result (${visibleLine(call.error)})` : "Result"}</h4>
          <LongCode text={call.result} language="" />
        </>
      )}
      {call.attempts > 1 && <p class="aside">This was attempt {call.attempts}.</p>}
    </div>
  );
}
