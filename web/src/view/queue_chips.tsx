/** Queued messages: each can be edited, moved, removed or sent at once. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { newId } from "../api/server.ts";
import type { MessageFile, QueuedView } from "../api/wire.ts";
import type { Turn } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { Icon, type IconName } from "./icons.tsx";

/** Puts a message, with its files, back into the box. */
export type ToBox = (text: string, files?: MessageFile[]) => void;

export function QueueChips({ session, toBox }: { session: OpenSession; toBox: ToBox }) {
  const queue = session.queue.value;
  const moved = useRef<{ messageId: string; button: string } | null>(null);
  const list = useRef<HTMLOListElement>(null);
  useLayoutEffect(() => {
    // After a move by its buttons the focus stays on the same message, at its new place.
    if (!moved.current) return;
    const chip = list.current?.querySelector(`[data-message="${CSS.escape(moved.current.messageId)}"]`);
    const button = chip?.querySelector<HTMLElement>(`[aria-label="${moved.current.button}"]`) ?? chip?.querySelector<HTMLElement>("button");
    moved.current = null;
    button?.focus();
  }, [queue]);
  if (queue.length === 0) return null;
  return (
    <ol class="queue" aria-label="Queued messages" ref={list}>
      {queue.map((message, index) => (
        <Chip
          key={message.message_id}
          message={message}
          index={index}
          session={session}
          toBox={toBox}
          willMove={(button) => (moved.current = { messageId: message.message_id, button })}
        />
      ))}
    </ol>
  );
}

interface Props {
  message: QueuedView;
  index: number;
  session: OpenSession;
  toBox: ToBox;
  willMove: (button: string) => void;
}

function Chip({ message, index, session, toBox, willMove }: Props) {
  const app = useApp();
  const [isEditing, setEditing] = useState(false);
  session.drawn.value;
  const ids = session.queue.value.map((found) => found.message_id);
  const move = (to: number, button: string): void => {
    if (to < 0 || to >= ids.length) return;
    willMove(button);
    void app.attempt(() => app.server.reorderQueue(session.id, reordered(ids, index, to)));
  };
  const takeBack = async (): Promise<void> => {
    // Only a message that was really removed goes into the box: one that was just promoted is in the conversation.
    const isOut = await app.attempt(async () => {
      await app.server.removeQueued(session.id, message.message_id);
      return true;
    });
    if (isOut) toBox(message.text, message.files ?? []);
  };
  const sendNow = async (): Promise<void> => {
    // The message stays on the server: it is moved to the front, then the turn is stopped. If that fails, it stays queued.
    await app.attempt(async () => {
      if (index > 0) await app.server.reorderQueue(session.id, reordered(ids, index, 0));
      await app.server.stop(session.id, newId(), { keepQueued: true });
    });
  };
  const pressed = (event: KeyboardEvent): void => {
    if (!event.altKey || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return;
    event.preventDefault();
    if (event.key === "ArrowUp") move(index - 1, UP);
    else move(index + 1, DOWN);
  };
  if (isEditing) return <Editing message={message} session={session} done={() => setEditing(false)} />;
  return (
    <li class="chip" data-message={message.message_id} onKeyDown={pressed}>
      <p class="chip-text" dir="auto">
        {message.text}
      </p>
      {message.files?.length ? <span class="aside">{counted(message.files.length)}</span> : null}
      <span class="aside">{whenOf(message, session.conversation.turn)}</span>
      <div class="chip-buttons">
        {index > 0 && <ChipButton icon="chevron" turned="upward" label={UP} run={() => move(index - 1, UP)} />}
        {index < ids.length - 1 && <ChipButton icon="chevron" turned="open" label={DOWN} run={() => move(index + 1, DOWN)} />}
        <ChipButton icon="edit" label="Edit" run={() => setEditing(true)} />
        {session.conversation.turn && <ChipButton icon="send" label="Stop the turn and send this now" run={() => void sendNow()} />}
        <ChipButton icon="close" label="Move back into the message box" run={() => void takeBack()} />
      </div>
    </li>
  );
}

const UP = "Move up";
const DOWN = "Move down";

function ChipButton({ icon, label, run, turned = "" }: { icon: IconName; label: string; run: () => void; turned?: string }) {
  return (
    <button type="button" class="quiet" aria-label={label} title={label} onClick={run}>
      <Icon name={icon} class={turned} />
    </button>
  );
}

function Editing({ message, session, done }: { message: QueuedView; session: OpenSession; done: () => void }) {
  const app = useApp();
  const [text, setText] = useState(message.text);
  const box = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => box.current?.focus(), []);
  const save = async (): Promise<void> => {
    if (text.trim() === "") return;
    const isSaved = await app.attempt(async () => {
      await app.server.editQueued(session.id, message.message_id, text);
      return true;
    });
    if (isSaved) done();
  };
  const pressed = (event: KeyboardEvent): void => {
    if (event.key === "Escape") done();
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) void save();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <li class="chip" data-message={message.message_id}>
      <label class="hidden" for={`queued-${message.message_id}`}>
        Change the message
      </label>
      <textarea
        id={`queued-${message.message_id}`}
        ref={box}
        dir="auto"
        rows={Math.min(8, text.split("\n").length)}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={pressed}
      />
      <div class="chip-buttons">
        <ChipButton icon="check" label="Save" run={() => void save()} />
        <ChipButton icon="close" label="Cancel the edit" run={done} />
      </div>
    </li>
  );
}

/** When the message will be promoted. */
export function whenOf(message: Pick<QueuedView, "delivery">, turn: Turn | null): string {
  if (turn === null) return "waits for its turn";
  if (message.delivery !== "steer") return "next turn";
  return turn.state === "waiting" ? "joins when it goes on" : "joins at the next step";
}

export function reordered(ids: string[], from: number, to: number): string[] {
  const order = ids.filter((_, index) => index !== from);
  order.splice(to, 0, ids[from]!);
  return order;
}

function counted(files: number): string {
  return files === 1 ? "1 file" : `${files} files`;
}
