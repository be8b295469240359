/** Keys for what is done often. With Ctrl or Cmd they work anywhere, the others where nothing is being written. */

import { useEffect } from "preact/hooks";
import type { App } from "../model/app.ts";

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
  { key: "/", withCommand: false, shown: "/", label: "Search sessions", run: () => document.getElementById("search")?.focus() },
  { key: "o", withCommand: false, shown: "O", label: "Overview", run: (app) => app.go({ kind: "overview" }) },
  { key: "t", withCommand: false, shown: "T", label: "Tasks", run: (app) => toggle(app, "tasks") },
  { key: "l", withCommand: false, shown: "L", label: "Timeline", run: (app) => toggle(app, "timeline") },
  { key: "m", withCommand: false, shown: "M", label: "Write a message", run: () => document.getElementById("composer")?.focus() },
];

function toggle(app: App, panel: "tasks" | "timeline"): void {
  app.panel.value = app.panel.value === panel ? "none" : panel;
}

export function useShortcuts(app: App): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      const isWriting = (event.target as HTMLElement).matches?.("input, textarea, [contenteditable]");
      const hasCommand = event.ctrlKey || event.metaKey;
      if (event.altKey || event.isComposing || (isWriting && !hasCommand) || app.paletteIsOpen.value) return;
      const found = SHORTCUTS.find((shortcut) => shortcut.key === event.key.toLowerCase() && shortcut.withCommand === hasCommand);
      if (!found) return;
      event.preventDefault();
      found.run(app);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}
