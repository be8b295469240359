/** The menu of a session: rename, pin, compact, export, delete and so on. */

import { signal, type Signal } from "@preact/signals";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { SessionView } from "../api/wire.ts";
import type { App } from "../model/app.ts";
import { useApp } from "./context.ts";
import { confirmed } from "./dialogs.tsx";
import { visibleLine } from "./escapes.ts";
import { Icon } from "./icons.tsx";

/** The session that is being renamed in the list. */
export const renaming: Signal<string | null> = signal<string | null>(null);

export function SessionMenu({ session }: { session: SessionView }) {
  const app = useApp();
  const [isOpen, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (!isOpen) return;
    const items = box.current?.querySelectorAll<HTMLElement>("[role=menuitem]");
    items?.[0]?.focus();
    items?.[items.length - 1]?.scrollIntoView({ block: "nearest" });
    const away = (event: Event): void => {
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    addEventListener("pointerdown", away);
    addEventListener("focusin", away);
    return () => {
      removeEventListener("pointerdown", away);
      removeEventListener("focusin", away);
    };
  }, [isOpen]);
  return (
    <div class="menu-box" ref={box} onKeyDown={(event) => moveIn(event, box.current, () => setOpen(false))}>
      <button
        type="button"
        class="quiet"
        aria-haspopup="menu"
        aria-expanded={isOpen}
        aria-label={`More for ${visibleLine(session.title) || "this session"}`}
        onClick={() => setOpen(!isOpen)}
      >
        <Icon name="more" />
      </button>
      {isOpen && (
        <div class="menu" role="menu">
          {actionsFor(app, session).map(({ label, run, isDanger }) => (
            <button
              key={label}
              type="button"
              role="menuitem"
              class={isDanger ? "danger-text" : ""}
              onClick={() => {
                setOpen(false);
                box.current?.querySelector<HTMLElement>("button")?.focus();
                run();
              }}
            >
              {label}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

export interface SessionAction {
  label: string;
  run: () => void;
  isDanger?: boolean;
}

export function actionsFor(app: App, session: SessionView): SessionAction[] {
  return [
    { label: "Rename", run: () => rename(app, session) },
    { label: session.pinned ? "Unpin" : "Pin", run: () => void changed(app, session, { pinned: !session.pinned }) },
    { label: "Compact", run: () => void app.compact(session.id) },
    { label: "Fork", run: () => void forked(app, session) },
    { label: "Export", run: () => void exported(app, session) },
    { label: "Delete", run: () => void removed(app, session), isDanger: true },
  ];
}

/** Arrow keys move, Escape closes. */
function moveIn(event: KeyboardEvent, box: HTMLElement | null, leave: () => void): void {
  const items = [...(box?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
  if (items.length === 0) return;
  const at = items.indexOf(document.activeElement as HTMLElement);
  if (event.key === "ArrowDown") items[(at + 1) % items.length]?.focus();
  else if (event.key === "ArrowUp") items[(at - 1 + items.length) % items.length]?.focus();
  else if (event.key === "Home") items[0]?.focus();
  else if (event.key === "End") items.at(-1)?.focus();
  else if (event.key === "Escape") {
    leave();
    box?.querySelector<HTMLElement>("button")?.focus();
  } else return;
  event.preventDefault();
  event.stopPropagation();
}

function rename(app: App, session: SessionView): void {
  app.listIsOpen.value = true;
  renaming.value = session.id;
}

async function changed(app: App, session: SessionView, changes: Record<string, unknown>): Promise<void> {
  const view = await app.attempt(() => app.server.change(session.id, changes));
  if (view) app.put(view);
}

async function forked(app: App, session: SessionView): Promise<void> {
  const view = await app.attempt(() => app.server.fork(session.id));
  if (!view) return;
  app.put(view);
  app.go({ kind: "session", id: view.id });
}

async function exported(app: App, session: SessionView): Promise<void> {
  const blob = await app.attempt(async () => (await app.server.exported(session.id)).blob());
  if (!blob) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${(session.title || session.id).replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 60) || session.id}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Imports an exported session as a new one. */
export function chooseImport(app: App): void {
  const input = document.createElement("input");
  input.type = "file";
  input.accept = ".json,application/json";
  input.onchange = () => {
    const file = input.files?.[0];
    if (file) void imported(app, file);
  };
  input.click();
}

async function imported(app: App, file: File): Promise<void> {
  const view = await app.attempt(async () => app.server.imported(parsed(await file.text(), file.name)));
  if (!view) return;
  app.put(view);
  app.go({ kind: "session", id: view.id });
  app.tell("Imported. Your next message continues it.");
}

function parsed(text: string, name: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${name} is not a session that was exported: it is no JSON.`);
  }
}

async function removed(app: App, session: SessionView): Promise<void> {
  const name = session.title || "this session";
  const isWanted = await confirmed(`Delete “${name}”?`, "This deletes the session for everyone and ends its running commands. It can’t be undone.", "Delete");
  if (!isWanted) return;
  await app.attempt(async () => {
    await app.server.remove(session.id);
    app.sessions.value = app.sessions.value.filter((found) => found.id !== session.id);
    if (app.open.value?.id === session.id) app.go({ kind: "start" });
  });
}
