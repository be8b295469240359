/** The sessions: what runs, what waits for somebody, and everything that was. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { SessionView } from "../api/wire.ts";
import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";
import { SessionMenu } from "./session_menu.tsx";
import { exactly, moment } from "./words.ts";

const STATUS_WORDS = { idle: "", queued: "queued", running: "running", waiting: "waits for an answer" } as const;

export function SessionList() {
  const app = useApp();
  const sessions = app.sessions.value;
  const pinned = sessions.filter((session) => session.pinned);
  const others = sessions.filter((session) => !session.pinned);
  return (
    <nav class="list" aria-label="Sessions">
      <div class="list-top">
        <button type="button" class="primary wide-button" onClick={() => app.go({ kind: "start" })}>
          <Icon name="plus" /> New session
        </button>
        <button type="button" class="quiet only-phone" aria-label="Close the list" onClick={() => (app.listIsOpen.value = false)}>
          <Icon name="close" />
        </button>
      </div>
      <Search />
      <a class={app.place.value.kind === "overview" ? "list-link current" : "list-link"} href="#/overview">
        <Icon name="overview" /> Overview
        {app.attention.value > 0 && (
          <span class="badge" aria-label={`${app.attention.value} wait for an answer`}>
            {app.attention.value}
          </span>
        )}
      </a>
      <div class="list-rows">
        {pinned.length > 0 && <Rows title="Pinned" sessions={pinned} />}
        <Rows title={app.search.value ? "Found" : pinned.length ? "Others" : ""} sessions={others} />
        {sessions.length === 0 && <p class="aside padded">{app.search.value ? "Nothing has that in it." : "What you start is kept here."}</p>}
        {app.more.value !== null && (
          <button type="button" class="link padded" onClick={() => void app.attempt(() => app.showMore())}>
            Show more
          </button>
        )}
      </div>
    </nav>
  );
}

function Search() {
  const app = useApp();
  const [text, setText] = useState(app.search.value);
  useEffect(() => {
    const timer = setTimeout(() => {
      if (app.search.value === text) return;
      app.search.value = text;
      void app.look();
    }, 200);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <div class="search">
      <Icon name="search" />
      <label class="hidden" for="search">
        Search sessions
      </label>
      <input id="search" type="search" placeholder="Search" value={text} onInput={(event) => setText(event.currentTarget.value)} />
    </div>
  );
}

function Rows({ title, sessions }: { title: string; sessions: SessionView[] }) {
  if (sessions.length === 0) return null;
  return (
    <>
      {title && <h2>{title}</h2>}
      <ul>
        {sessions.map((session) => (
          <Row key={session.id} session={session} />
        ))}
      </ul>
    </>
  );
}

function Row({ session }: { session: SessionView }) {
  const app = useApp();
  const [isRenaming, setRenaming] = useState(false);
  const isCurrent = app.open.value?.id === session.id;
  const words = STATUS_WORDS[session.status];
  return (
    <li class={isCurrent ? "row-item current" : "row-item"}>
      {isRenaming ? (
        <Renaming session={session} done={() => setRenaming(false)} />
      ) : (
        <a href={`#/s/${encodeURIComponent(session.id)}`} aria-current={isCurrent ? "page" : undefined}>
          <span class={`dot ${session.status}`} role="img" aria-label={words || "idle"} />
          <span class={session.unread ? "row-title unread" : "row-title"}>{session.title || "New session"}</span>
          {session.pending_requests > 0 && <span class="badge">{session.pending_requests}</span>}
          <time title={exactly(session.updated_at)}>{moment(session.updated_at)}</time>
        </a>
      )}
      <SessionMenu session={session} rename={() => setRenaming(true)} />
    </li>
  );
}

function Renaming({ session, done }: { session: SessionView; done: () => void }) {
  const app = useApp();
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => box.current?.select(), []);
  const save = async (): Promise<void> => {
    const title = box.current?.value.trim() ?? "";
    done();
    if (!title || title === session.title) return;
    const changed = await app.attempt(() => app.server.change(session.id, { title }));
    if (changed) app.put(changed);
  };
  return (
    <form
      class="renaming"
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      <label class="hidden" for={`name-${session.id}`}>
        Name of the session
      </label>
      <input
        id={`name-${session.id}`}
        ref={box}
        defaultValue={session.title}
        maxLength={200}
        onBlur={() => void save()}
        onKeyDown={(event) => {
          if (event.key === "Escape") done();
        }}
      />
    </form>
  );
}
