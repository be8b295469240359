/** Modal dialogs: confirmations before something that can't be undone, and the list of shortcuts. */

import { signal, type Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { visible, visibleLine } from "./escapes.ts";
import { Icon } from "./icons.tsx";
import { PermissionsPanel } from "./permissions_panel.tsx";
import { SHORTCUTS, WHILE_WRITING } from "./shortcuts.ts";

interface Confirmation {
  kind: "confirm";
  title: string;
  text: string;
  action: string;
  answer: (isWanted: boolean) => void;
}

type Shown = Confirmation | { kind: "keys" } | { kind: "permissions" };

export const dialog: Signal<Shown | null> = signal<Shown | null>(null);

/** Asks for a confirmation. Closing the dialog is a no. */
export function confirmed(title: string, text: string, action: string): Promise<boolean> {
  return new Promise((resolve) => {
    const answer = (isWanted: boolean): void => {
      dialog.value = null;
      resolve(isWanted);
    };
    dialog.value = { kind: "confirm", title, text, action, answer };
  });
}

export function Dialogs() {
  const shown = dialog.value;
  if (shown === null) return null;
  if (shown.kind === "keys") return <Keys />;
  if (shown.kind === "permissions") return <PermissionsPanel />;
  return (
    <Box title={visibleLine(shown.title)} left={() => shown.answer(false)}>
      <p>{visible(shown.text)}</p>
      <div class="buttons">
        <button type="button" onClick={() => shown.answer(false)}>
          Cancel
        </button>
        <button type="button" class="danger" onClick={() => shown.answer(true)}>
          {shown.action}
        </button>
      </div>
    </Box>
  );
}

function Keys() {
  const close = (): void => {
    dialog.value = null;
  };
  return (
    <Box title="Keys" left={close} isClosable>
      <dl class="key-list">
        {[...SHORTCUTS.map(({ shown, label }) => [shown, label] as const), ...WHILE_WRITING].map(([keys, label]) => (
          <div key={keys + label}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{label}</dd>
          </div>
        ))}
      </dl>
    </Box>
  );
}

/** The rest of the page is inert meanwhile. Afterwards the focus returns to where it was. */
export function Box({
  title,
  left,
  isClosable = false,
  children,
}: {
  title: string;
  left: () => void;
  isClosable?: boolean;
  children: ComponentChildren;
}) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    box.current?.showModal();
    return () => before?.focus();
  }, []);
  return (
    <dialog
      class="dialog"
      ref={box}
      aria-labelledby="dialog-title"
      onCancel={left}
      onClose={left}
      onClick={(event) => {
        if (event.target === box.current) left();
      }}
    >
      <div class="dialog-body">
        <header class="row">
          <h2 id="dialog-title">{title}</h2>
          {isClosable && (
            <button type="button" class="quiet" aria-label="Close" onClick={left}>
              <Icon name="close" />
            </button>
          )}
        </header>
        {children}
      </div>
    </dialog>
  );
}
