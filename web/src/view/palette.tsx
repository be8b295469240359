/** Everything that can be done or opened, by a few letters of its name. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { App } from "../model/app.ts";
import { useApp } from "./context.ts";
import { exported, forked } from "./session_menu.tsx";
import { SHORTCUTS } from "./shortcuts.ts";

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
  const close = (): void => {
    app.paletteIsOpen.value = false;
  };
  const found = actionsOf(app).filter((action) => action.label.toLowerCase().includes(text.trim().toLowerCase()));
  const run = (action: Action | undefined): void => {
    close();
    action?.run();
  };
  const pressed = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown") setAt(Math.min(found.length - 1, at + 1));
    else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
    else if (event.key === "Enter") run(found[at]);
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
        placeholder="What to do, or which session to open"
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
            <kbd>{action.keys}</kbd>
          </li>
        ))}
      </ul>
    </dialog>
  );
}

function actionsOf(app: App): Action[] {
  const general = SHORTCUTS.map(({ label, shown, run }) => ({ label, keys: shown, run: () => run(app) }));
  const current = app.current.value;
  const here: Action[] = current
    ? [
        { label: "Fork this session", keys: "", run: () => void forked(app, current) },
        { label: "Export this session", keys: "", run: () => void exported(app, current) },
      ]
    : [];
  const sessions = app.sessions.value.map((session) => ({
    label: `Open: ${session.title || "New session"}`,
    keys: "",
    run: () => app.go({ kind: "session", id: session.id }),
  }));
  return [...general, ...here, { label: "Sign out", keys: "", run: () => app.signOut() }, ...sessions];
}
