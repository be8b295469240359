/**
 * Shows that a session waits for an answer: always in the tab's title, and as a notification if the tab is hidden and the
 * person wants it.
 */

import { signal, useSignalEffect, type Signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { App } from "../model/app.ts";
import { keep, kept } from "../model/kept.ts";
import { visibleLine } from "./escapes.ts";

/** `blocked`: the browser's settings forbid notifications of this page. */
export type Notifying = "unsupported" | "blocked" | "off" | "on";

export const notifying: Signal<Notifying> = signal(asItIs());

function asItIs(): Notifying {
  if (typeof Notification === "undefined") return "unsupported";
  if (Notification.permission === "denied") return "blocked";
  return Notification.permission === "granted" && kept("notify", false) ? "on" : "off";
}

/** Switches notifications on or off. Call it on a click: a browser asks for permission only then. */
export async function toggleNotifying(): Promise<void> {
  if (notifying.value === "unsupported") return;
  keep("notify", notifying.value === "on" ? null : true);
  if (Notification.permission === "default") await Notification.requestPermission();
  notifying.value = asItIs();
}

export function useAttention(app: App): void {
  const known = useRef<Map<string, string>>(new Map());
  useSignalEffect(() => {
    const waiting = app.attention.value;
    const title = app.open.value ? visibleLine(app.current.value?.title ?? "") : "";
    document.title = `${waiting ? `(${waiting}) ` : ""}${title ? `${title} · ` : ""}Holdfast`;
  });
  useSignalEffect(() => {
    for (const session of app.sessions.value) {
      const before = known.current.get(session.id);
      known.current.set(session.id, session.status);
      if (before === undefined || before === session.status || !document.hidden) continue;
      const name = visibleLine(session.title) || "A session";
      if (session.status === "waiting") notify(app, session.id, `${name} needs an answer`);
      else if (session.status === "idle") notify(app, session.id, `${name} is done`);
    }
  });
}

function notify(app: App, id: string, text: string): void {
  if (notifying.value !== "on") return;
  try {
    const shown = new Notification("Holdfast", { body: text, tag: id });
    shown.onclick = () => {
      focus();
      app.go({ kind: "session", id });
      shown.close();
    };
  } catch {
    // Browsers on phones support notifications, but not from a page.
    notifying.value = "unsupported";
  }
}
