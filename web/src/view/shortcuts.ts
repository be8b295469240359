/** Keyboard shortcuts. Those with Ctrl or Cmd work anywhere, the others outside of text fields. */

import { useEffect } from "preact/hooks";
import type { App } from "../model/app.ts";
import { dialog } from "./dialogs.tsx";

export interface Shortcut {
  key: string;
  withCommand: boolean;
  shown: string;
  label: string;
  run: (app: App) => void;
}

export const SHORTCUTS: Shortcut[] = [
  { key: "k", withCommand: true, shown: "Ctrl K", label: "Commands", run: (app) => (app.paletteIsOpen.value = true) },
  { key: "n", withCommand: false, shown: "N", label: "New session", run: (app) => app.go({ kind: "start" }) },
  { key: "/", withCommand: false, shown: "/", label: "Search sessions", run: (app) => focusSearch(app) },
  { key: "o", withCommand: false, shown: "O", label: "Overview", run: (app) => app.go({ kind: "overview" }) },
  { key: "u", withCommand: false, shown: "U", label: "Usage", run: (app) => app.go({ kind: "usage" }) },
  { key: "t", withCommand: false, shown: "T", label: "Tasks", run: (app) => toggle(app, "tasks") },
  { key: "l", withCommand: false, shown: "L", label: "Timeline", run: (app) => toggle(app, "timeline") },
  { key: "m", withCommand: false, shown: "M", label: "Write a message", run: () => document.getElementById("composer")?.focus() },
  { key: "r", withCommand: false, shown: "R", label: "Go to the open request", run: () => focusRequest() },
  { key: "?", withCommand: false, shown: "?", label: "Keys", run: () => (dialog.value = { kind: "keys" }) },
];

/** Keys of the box, of requests and of queued messages: each works where the focus is. */
export const WHILE_WRITING: (readonly [string, string])[] = [
  ["Enter", "Send, or join the running turn"],
  ["Shift Enter", "A new line"],
  ["Alt Enter", "Send for the next turn"],
  ["Ctrl Enter", "Stop the turn and send"],
  ["Esc", "Stop the turn"],
  ["↑", "From an empty message box to the open request"],
  ["A, S, D", "In a request: allow once, allow for the session, deny"],
  ["Alt ↑, Alt ↓", "In a queued message: move it"],
];

function toggle(app: App, panel: "tasks" | "timeline"): void {
  app.panel.value = app.panel.value === panel ? "none" : panel;
}

function focusSearch(app: App): void {
  app.listIsOpen.value = true;
  requestAnimationFrame(() => document.getElementById("search")?.focus());
}

/** The first open request, if any. */
export function focusRequest(): boolean {
  const found = document.querySelector<HTMLElement>(".request");
  found?.focus();
  found?.scrollIntoView({ block: "nearest" });
  return found !== null;
}

export function useShortcuts(app: App): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      const isWriting = (event.target as HTMLElement).matches?.("input, textarea, select, [contenteditable]");
      const hasCommand = event.ctrlKey || event.metaKey;
      const isElsewhere = app.paletteIsOpen.value || dialog.value !== null || app.offered.value !== null || app.mustSignIn.value;
      if (event.altKey || event.isComposing || event.defaultPrevented || (isWriting && !hasCommand) || isElsewhere) return;
      const found = SHORTCUTS.find((shortcut) => shortcut.key === event.key.toLowerCase() && shortcut.withCommand === hasCommand);
      if (!found) return;
      event.preventDefault();
      found.run(app);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}
