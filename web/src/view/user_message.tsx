/** A message of a person. It can be pinned, so that no summary replaces it, and edited, which takes back everything after it. */

import { useState } from "preact/hooks";
import type { UserItem } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { MessageFiles } from "./files.tsx";
import { Icon } from "./icons.tsx";
import { CopyButton } from "./markdown.tsx";
import { exactly, moment } from "./words.ts";

export function UserMessage({ item, session, isPinned }: { item: UserItem; session: OpenSession; isPinned: boolean }) {
  const app = useApp();
  const [isEditing, setEditing] = useState(false);
  const pinning = isPinned ? "Unpin: let it be summarised" : "Pin: keep it word for word for the model";
  const steered = item.delivery === "steering";
  return (
    <article class="user" aria-label={steered ? "Your follow-up" : "Your message"}>
      {isEditing ? (
        <Editing item={item} session={session} done={() => setEditing(false)} />
      ) : (
        <>
          {item.text && <div class="bubble">{item.text}</div>}
          <MessageFiles files={item.files} />
          <footer class="under">
            {isPinned && (
              <span class="tag pinned">
                <Icon name="pin" /> pinned
              </span>
            )}
            {steered && <span class="tag">follow-up</span>}
            <time title={exactly(item.time)}>{moment(item.time)}</time>
            <CopyButton text={item.text} label="Copy message" />
            <button
              type="button"
              class="quiet"
              aria-pressed={isPinned}
              title={pinning}
              aria-label={isPinned ? "Unpin message" : "Pin message"}
              onClick={() => void app.attempt(() => app.server.pin(session.id, item.messageId, !isPinned))}
            >
              <Icon name="pin" />
            </button>
            {!steered && (
              <button type="button" class="quiet" title="Edit and send again" aria-label="Edit and send again" onClick={() => setEditing(true)}>
                <Icon name="edit" />
              </button>
            )}
          </footer>
        </>
      )}
    </article>
  );
}

function Editing({ item, session, done }: { item: UserItem; session: OpenSession; done: () => void }) {
  const app = useApp();
  const [text, setText] = useState(item.text);
  const send = async (): Promise<void> => {
    const sent = await app.attempt(async () => {
      await app.server.edit(session.id, item.messageId, text, item.files);
      return true;
    });
    if (sent) done();
  };
  return (
    <form
      class="editing"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      <label class="hidden" for={`edit-${item.key}`}>
        Edit your message
      </label>
      <textarea
        id={`edit-${item.key}`}
        value={text}
        rows={Math.min(12, text.split("\n").length + 1)}
        ref={(box) => box?.focus()}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") done();
        }}
      />
      <p class="aside">This message and everything after it are replaced.</p>
      <div class="buttons">
        <button type="button" onClick={done}>
          Cancel
        </button>
        <button type="submit" class="primary" disabled={text.trim() === "" && item.files.length === 0}>
          Send again
        </button>
      </div>
    </form>
  );
}
