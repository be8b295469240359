/** Says that somebody is needed: in the tab's title always, and by a notification when nobody looks. */

import { useSignalEffect } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { App } from "../model/app.ts";

export function useAttention(app: App): void {
  const known = useRef<Map<string, string>>(new Map());
  useSignalEffect(() => {
    const waiting = app.attention.value;
    const title = app.open.value ? (app.current.value?.title ?? "") : "";
    document.title = `${waiting ? `(${waiting}) ` : ""}${title ? `${title} · ` : ""}Holdfast`;
  });
  useSignalEffect(() => {
    for (const session of app.sessions.value) {
      const before = known.current.get(session.id);
      known.current.set(session.id, session.status);
      if (before === undefined || before === session.status || !document.hidden) continue;
      const name = session.title || "A session";
      if (session.status === "waiting") notify(app, session.id, `${name} needs an answer`);
      else if (session.status === "idle") notify(app, session.id, `${name} is done`);
    }
  });
}

function notify(app: App, id: string, text: string): void {
  if (typeof Notification === "undefined" || Notification.permission !== "granted") return;
  const shown = new Notification("Holdfast", { body: text, tag: id });
  shown.onclick = () => {
    focus();
    app.go({ kind: "session", id });
    shown.close();
  };
}
