/** The command palette: finds commands and sessions by a few letters of their names. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { App } from "../model/app.ts";
import { useApp } from "./context.ts";
import { notifying, toggleNotifying } from "./attention.ts";
import { dialog } from "./dialogs.tsx";
import { visibleLine } from "./escapes.ts";
import { actionsFor, chooseImport } from "./session_menu.tsx";
import { SHORTCUTS } from "./shortcuts.ts";
import { theme, THEMES, type Theme } from "./theme.ts";

interface Action {
  label: string;
  keys: string;
  run: () => void;
}

export function Palette() {
  const app = useApp();
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    box.current?.showModal();
    return () => before?.focus();
  }, []);
  useEffect(() => document.getElementById(`palette-${at}`)?.scrollIntoView({ block: "nearest" }), [at]);
  const close = (): void => {
    app.paletteIsOpen.value = false;
  };
  const found = actionsOf(app).filter((action) => action.label.toLowerCase().includes(text.trim().toLowerCase()));
  const run = (action: Action | undefined): void => {
    if (!action) return;
    close();
    // After the focus has returned to where it was: the command may move it.
    setTimeout(action.run);
  };
  const pressed = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown") setAt(Math.min(found.length - 1, at + 1));
    else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
    else if (event.key === "Enter" && !event.isComposing) run(found[at]);
    else return;
    event.preventDefault();
  };
  return (
    <dialog class="palette" ref={box} aria-label="Commands" onClose={close} onClick={(event) => event.target === box.current && close()}>
      <label class="hidden" for="palette">
        What to do
      </label>
      <input
        id="palette"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={found[at] ? `palette-${at}` : undefined}
        autocomplete="off"
        placeholder="Find a command or a session"
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={pressed}
      />
      <ul id="palette-list" role="listbox" aria-label="Commands">
        {found.map((action, index) => (
          <li key={action.label + index} id={`palette-${index}`} role="option" aria-selected={index === at} onClick={() => run(action)}>
            <span>{action.label}</span>
            {action.keys && <kbd>{action.keys}</kbd>}
          </li>
        ))}
        {found.length === 0 && <li aria-disabled="true">No command or session has this name.</li>}
      </ul>
    </dialog>
  );
}

function actionsOf(app: App): Action[] {
  const general = SHORTCUTS.filter(({ key }) => key !== "k").map(({ label, shown, run }) => ({ label, keys: shown, run: () => run(app) }));
  const current = app.current.value;
  const here = current ? actionsFor(app, current).map(({ label, run }) => ({ label: `${label} this session`, keys: "", run })) : [];
  const sessions = app.sessions.value.map((session) => ({
    label: `Open: ${visibleLine(session.title) || "New session"}`,
    keys: "",
    run: () => app.go({ kind: "session", id: session.id }),
  }));
  return [...general, ...here, ...settingsOf(app), ...sessions];
}

function settingsOf(app: App): Action[] {
  const colours = (Object.keys(THEMES) as Theme[]).map((name) => ({
    label: `Colours: ${THEMES[name].toLowerCase()}`,
    keys: theme.value === name ? "now" : "",
    run: () => void (theme.value = name),
  }));
  const notify = { on: "Turn off notifications", off: "Notify me when a session needs an answer", blocked: "", unsupported: "" }[notifying.value];
  return [
    { label: "Import a session", keys: "", run: () => chooseImport(app) },
    { label: "Permissions", keys: "", run: () => void (dialog.value = { kind: "permissions" }) },
    ...(notify ? [{ label: notify, keys: "", run: () => void toggleNotifying() }] : []),
    ...colours,
    { label: "Sign out", keys: "", run: () => app.signOut() },
  ];
}
