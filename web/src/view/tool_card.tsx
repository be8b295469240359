/** A tool call: what it is, how it stands, and all of it for who wants to see. A question about it stands inside. */

import { useState } from "preact/hooks";
import type { Call, CallStatus } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";
import { Code } from "./markdown.tsx";
import { RequestCard } from "./request_card.tsx";
import { summaryOf } from "./tool_words.ts";
import { duration } from "./words.ts";

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

const LONGEST_SHOWN = 20_000;

export function ToolCard({ call, session }: { call: Call; session: OpenSession }) {
  const [isOpen, setOpen] = useState(false);
  const asked = call.requestId ? session.conversation.requests.get(call.requestId) : undefined;
  const status = call.flipped && call.status === "done" ? "goes on in the background" : STATUS[call.status];
  return (
    <section class={`tool ${call.status}`} data-call={call.callId}>
      <button type="button" class="tool-head" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <span class={`dot ${call.status}`} aria-hidden="true" />
        <span class="tool-name">{call.name}</span>
        <span class="tool-summary">{summaryOf(call)}</span>
        <span class="tool-status">
          {status}
          {call.simulated && ", simulated"}
          {call.durationMs > 0 && ` · ${duration(call.durationMs)}`}
        </span>
        <Icon name="chevron" class={isOpen ? "open" : ""} />
      </button>
      {call.status === "running" && call.progress && <LiveOutput text={call.progress} />}
      {asked?.open && <RequestCard asked={asked} session={session} />}
      {asked && !asked.open && asked.feedback && <p class="aside">“{asked.feedback}”</p>}
      {call.taskId && <TaskLink />}
      {isOpen && <Details call={call} />}
    </section>
  );
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

/** The last lines of what it says while it runs. */
function LiveOutput({ text }: { text: string }) {
  return <pre class="live-output">{text.split("\n").slice(-12).join("\n")}</pre>;
}

function Details({ call }: { call: Call }) {
  return (
    <div class="tool-details">
      <h4>Input</h4>
      <Code text={pretty(call.arguments)} language="json" />
      {call.details && (
        <>
          <h4>Changes</h4>
          <Code text={call.details} language="diff" />
        </>
      )}
      {call.result !== null && (
        <>
          <h4>{call.error ? `Result (${call.error})` : "Result"}</h4>
          <Code text={shortened(call.result)} language="" />
        </>
      )}
      {call.attempts > 1 && <p class="aside">This was attempt {call.attempts}.</p>}
    </div>
  );
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function shortened(text: string): string {
  if (text.length <= LONGEST_SHOWN) return text;
  return `${text.slice(0, LONGEST_SHOWN)}\n… and ${text.length - LONGEST_SHOWN} more characters`;
}
