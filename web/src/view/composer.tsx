/** The box to write in. Enter sends, or joins the running turn; Esc stops; what was refused comes back into it. */

import { useSignalEffect } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { newId } from "../api/server.ts";
import { keep, kept } from "../model/kept.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";
import { QueueChips } from "./queue_chips.tsx";

const TALLEST_PX = 240;

export function Composer({ session }: { session: OpenSession | null }) {
  const app = useApp();
  const draft = `draft.${session?.id ?? "new"}`;
  const [text, setText] = useState(() => kept(draft, ""));
  const [refusal, setRefusal] = useState("");
  const box = useRef<HTMLTextAreaElement>(null);
  session?.drawn.value;
  const isBusy = session !== null && session.conversation.turn !== null;
  const isRunning = isBusy && session.conversation.turn?.state === "running";

  useSignalEffect(() => {
    const back = app.givenBack.value;
    if (!back || (session && back.sessionId !== session.id)) return;
    app.givenBack.value = null;
    setText((now) => (now.trim() ? `${back.text}\n\n${now}` : back.text));
    setRefusal(back.reason);
  });
  useEffect(() => keep(draft, text), [draft, text]);
  useEffect(() => fit(box.current), [text]);
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) box.current?.focus();
  }, []);

  const send = (delivery: "steer" | "enqueue" | "interrupt" = "steer"): void => {
    const wanted = text.trim();
    if (!wanted) return;
    setText("");
    keep(draft, null);
    setRefusal("");
    app.send(wanted, delivery);
    box.current?.focus();
  };
  const stop = async (): Promise<void> => {
    if (!session) return;
    const done = await app.attempt(() => app.server.stop(session.id, newId()));
    const returned = (done?.returned ?? []).map((message) => message.text);
    if (returned.length) setText((now) => [...returned, now].filter((part) => part.trim()).join("\n\n"));
  };
  const pressed = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send(event.altKey ? "enqueue" : event.ctrlKey || event.metaKey ? "interrupt" : "steer");
    } else if (event.key === "Escape" && isBusy) {
      event.preventDefault();
      void stop();
    }
  };

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      {session && <QueueChips session={session} toBox={(queued) => setText((now) => (now.trim() ? `${queued}\n\n${now}` : queued))} />}
      {refusal && (
        <p class="problem" role="alert">
          {refusal}
        </p>
      )}
      <div class="composer-box">
        <label class="hidden" for="composer">
          {isRunning ? "Say something to the running turn" : "Message"}
        </label>
        <textarea
          id="composer"
          ref={box}
          rows={1}
          value={text}
          enterkeyhint="send"
          placeholder={isRunning ? "Add to what it is doing …" : "What should be done?"}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={pressed}
        />
        {isBusy && !text.trim() ? (
          <button type="button" class="round" aria-label="Stop" title="Stop (Esc)" onClick={() => void stop()}>
            <Icon name="stop" />
          </button>
        ) : (
          <button type="submit" class="round primary" aria-label="Send" title="Send (Enter)" disabled={!text.trim()}>
            <Icon name="send" />
          </button>
        )}
      </div>
      <p class="keys" aria-hidden="true">
        {isRunning ? "Enter joins this turn · Alt+Enter waits for the next · Esc stops" : "Enter sends · Shift+Enter for a new line"}
      </p>
    </form>
  );
}

function fit(box: HTMLTextAreaElement | null): void {
  if (!box) return;
  box.style.height = "auto";
  box.style.height = `${Math.min(TALLEST_PX, box.scrollHeight)}px`;
}
