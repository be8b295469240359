/** Says that somebody is needed: in the tab's title always, and by a notification when nobody looks and it is wanted. */

import { signal, useSignalEffect, type Signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { App } from "../model/app.ts";
import { keep, kept } from "../model/kept.ts";
import { visibleLine } from "./escapes.ts";

/** `blocked`: the browser was told not to let this page; only its own settings change that. */
export type Notifying = "unsupported" | "blocked" | "off" | "on";

export const notifying: Signal<Notifying> = signal(asItIs());

function asItIs(): Notifying {
  if (typeof Notification === "undefined") return "unsupported";
  if (Notification.permission === "denied") return "blocked";
  return Notification.permission === "granted" && kept("notify", false) ? "on" : "off";
}

/** On, or off again. To be called when the person asks for it: only then does a browser ask for its permission. */
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
    // Browsers on phones have notifications, but not from a page.
    notifying.value = "unsupported";
  }
}
