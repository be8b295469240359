/** What can be done with a session as a whole. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { SessionView } from "../api/wire.ts";
import type { App } from "../model/app.ts";
import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";

export function SessionMenu({ session, rename }: { session: SessionView; rename: () => void }) {
  const app = useApp();
  const [isOpen, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    box.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const away = (event: Event): void => {
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    addEventListener("pointerdown", away);
    return () => removeEventListener("pointerdown", away);
  }, [isOpen]);
  const chosen = (work: () => unknown) => () => {
    setOpen(false);
    void work();
  };
  return (
    <div class="menu-box" ref={box} onKeyDown={(event) => moveIn(event, box.current, () => setOpen(false))}>
      <button
        type="button"
        class="quiet"
        aria-haspopup="menu"
        aria-expanded={isOpen}
        aria-label={`More for ${session.title || "this session"}`}
        onClick={() => setOpen(!isOpen)}
      >
        <Icon name="more" />
      </button>
      {isOpen && (
        <div class="menu" role="menu">
          <Choice label="Rename" chosen={chosen(rename)} />
          <Choice label={session.pinned ? "Unpin" : "Pin"} chosen={chosen(() => changed(app, session, { pinned: !session.pinned }))} />
          <Choice label="Fork" chosen={chosen(() => forked(app, session))} />
          <Choice label="Export" chosen={chosen(() => exported(app, session))} />
          <Choice label="Delete" danger chosen={chosen(() => removed(app, session))} />
        </div>
      )}
    </div>
  );
}

function Choice({ label, chosen, danger = false }: { label: string; chosen: () => void; danger?: boolean }) {
  return (
    <button type="button" role="menuitem" class={danger ? "danger-text" : ""} onClick={chosen}>
      {label}
    </button>
  );
}

/** Arrows move, Escape leaves. */
function moveIn(event: KeyboardEvent, box: HTMLElement | null, leave: () => void): void {
  const items = [...(box?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
  if (items.length === 0) return;
  const at = items.indexOf(document.activeElement as HTMLElement);
  if (event.key === "ArrowDown") items[(at + 1) % items.length]?.focus();
  else if (event.key === "ArrowUp") items[(at - 1 + items.length) % items.length]?.focus();
  else if (event.key === "Escape") {
    leave();
    box?.querySelector<HTMLElement>("button")?.focus();
  } else return;
  event.preventDefault();
  event.stopPropagation();
}

async function changed(app: App, session: SessionView, changes: Record<string, unknown>): Promise<void> {
  const view = await app.attempt(() => app.server.change(session.id, changes));
  if (view) app.put(view);
}

export async function forked(app: App, session: SessionView): Promise<void> {
  const view = await app.attempt(() => app.server.fork(session.id));
  if (!view) return;
  app.put(view);
  app.go({ kind: "session", id: view.id });
}

export async function exported(app: App, session: SessionView): Promise<void> {
  const blob = await app.attempt(async () => (await app.server.exported(session.id)).blob());
  if (!blob) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${(session.title || session.id).replace(/[^\w -]+/g, "").slice(0, 60) || session.id}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export async function imported(app: App, file: File): Promise<void> {
  const view = await app.attempt(async () => app.server.imported(JSON.parse(await file.text())));
  if (!view) return;
  app.put(view);
  app.go({ kind: "session", id: view.id });
}

async function removed(app: App, session: SessionView): Promise<void> {
  if (!confirm(`Delete “${session.title || "this session"}” and everything in it?`)) return;
  await app.attempt(async () => {
    await app.server.remove(session.id);
    app.sessions.value = app.sessions.value.filter((found) => found.id !== session.id);
    if (app.open.value?.id === session.id) app.go({ kind: "start" });
  });
}
