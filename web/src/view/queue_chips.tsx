/** Messages that wait for their turn: each can be changed, moved, taken back, or sent at once. */

import { useState } from "preact/hooks";
import type { QueuedView } from "../api/wire.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";

export function QueueChips({ session, toBox }: { session: OpenSession; toBox: (text: string) => void }) {
  const queue = session.queue.value;
  if (queue.length === 0) return null;
  return (
    <ol class="queue" aria-label="Messages that wait">
      {queue.map((message, index) => (
        <Chip key={message.message_id} message={message} index={index} session={session} toBox={toBox} />
      ))}
    </ol>
  );
}

function Chip({
  message,
  index,
  session,
  toBox,
}: {
  message: QueuedView;
  index: number;
  session: OpenSession;
  toBox: (text: string) => void;
}) {
  const app = useApp();
  const [isEditing, setEditing] = useState(false);
  const [text, setText] = useState(message.text);
  const ids = session.queue.value.map((found) => found.message_id);
  const take = (): Promise<unknown> => app.attempt(() => app.server.removeQueued(session.id, message.message_id));
  const moveUp = (): void => {
    const order = [...ids];
    order.splice(index - 1, 2, ids[index]!, ids[index - 1]!);
    void app.attempt(() => app.server.reorderQueue(session.id, order));
  };
  const sendNow = async (): Promise<void> => {
    await take();
    app.outbox.value?.add(message.text, { delivery: "interrupt" });
  };
  if (isEditing) {
    return (
      <li class="chip">
        <form
          class="row"
          onSubmit={(event) => {
            event.preventDefault();
            setEditing(false);
            void app.attempt(() => app.server.editQueued(session.id, message.message_id, text));
          }}
        >
          <label class="hidden" for={`queued-${message.message_id}`}>
            Change the message
          </label>
          <input
            id={`queued-${message.message_id}`}
            value={text}
            ref={(box) => box?.focus()}
            onInput={(event) => setText(event.currentTarget.value)}
          />
          <button type="submit" class="quiet" aria-label="Save">
            <Icon name="check" />
          </button>
        </form>
      </li>
    );
  }
  return (
    <li class="chip">
      <span class="chip-text">{message.text}</span>
      <span class="aside">{message.delivery === "steer" ? "joins at the next step" : "next turn"}</span>
      {index > 0 && (
        <button type="button" class="quiet" aria-label="Move up" title="Move up" onClick={moveUp}>
          <Icon name="down" class="flipped" />
        </button>
      )}
      <button type="button" class="quiet" aria-label="Edit" title="Edit" onClick={() => setEditing(true)}>
        <Icon name="edit" />
      </button>
      <button type="button" class="quiet" aria-label="Stop the turn and send this now" title="Stop the turn and send this now" onClick={() => void sendNow()}>
        <Icon name="send" />
      </button>
      <button
        type="button"
        class="quiet"
        aria-label="Take back"
        title="Take back into the box"
        onClick={() => void take().then(() => toBox(message.text))}
      >
        <Icon name="close" />
      </button>
    </li>
  );
}
