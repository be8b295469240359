/** Reports the seen position of the open session to the server while the tab is visible. */

import { useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { App } from "../model/app.ts";
import type { OpenSession } from "../model/open_session.ts";

/** Long enough to combine positions that arrive together. */
const PAUSE_MS = 1_000;

export function useSeen(app: App): void {
  const told = useRef(new Map<string, number>());
  const waiting = useRef<{ session: OpenSession; timer: ReturnType<typeof setTimeout> } | null>(null);
  const tell = (): void => {
    if (!waiting.current) return;
    const { session, timer } = waiting.current;
    clearTimeout(timer);
    waiting.current = null;
    const { position } = session.conversation;
    if (session.deleted.value || position <= (told.current.get(session.id) ?? 0)) return;
    told.current.set(session.id, position);
    void app.server.see(session.id, position).then(
      ({ unread }) => {
        const row = app.sessions.value.find((found) => found.id === session.id);
        if (row && row.unread !== unread) app.put({ ...row, unread });
      },
      () => told.current.delete(session.id),
    );
  };
  const soon = (): void => {
    const session = app.open.value;
    if (waiting.current && waiting.current.session !== session) tell(); // The session that is left was seen up to here.
    if (session?.loaded.value && !document.hidden) waiting.current ??= { session, timer: setTimeout(tell, PAUSE_MS) };
  };
  useSignalEffect(() => {
    app.open.value?.drawn.value;
    soon();
  });
  useEffect(() => {
    // A tab that becomes hidden was seen up to here; one that becomes visible is seen now.
    const turned = (): void => (document.hidden ? tell() : soon());
    document.addEventListener("visibilitychange", turned);
    return () => document.removeEventListener("visibilitychange", turned);
  }, []);
}
