/** The list of sessions: running, waiting for an answer, and earlier ones. Below it, the settings of the page. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { SessionView } from "../api/wire.ts";
import { notifying, toggleNotifying, type Notifying } from "./attention.ts";
import { useApp } from "./context.ts";
import { dialog } from "./dialogs.tsx";
import { visibleLine } from "./escapes.ts";
import { Icon, type IconName } from "./icons.tsx";
import { chooseImport, renaming, SessionMenu } from "./session_menu.tsx";
import { nextTheme, theme, THEMES } from "./theme.ts";
import { count, exactly, moment } from "./words.ts";

const STATUS_WORDS = { idle: "", queued: "queued", running: "running", waiting: "waits for an answer" } as const;

export function SessionList() {
  const app = useApp();
  const sessions = app.sessions.value;
  const pinned = sessions.filter((session) => session.pinned);
  const others = sessions.filter((session) => !session.pinned);
  return (
    <nav
      class="list"
      aria-label="Sessions"
      onKeyDown={(event) => {
        if (event.key === "Escape") app.listIsOpen.value = false;
      }}
    >
      <div class="list-top">
        <button type="button" class="primary wide-button" onClick={() => app.go({ kind: "start" })}>
          <Icon name="plus" /> New session
        </button>
        <button type="button" class="quiet only-phone" aria-label="Close the list" onClick={() => (app.listIsOpen.value = false)}>
          <Icon name="close" />
        </button>
      </div>
      <Search />
      <a
        class={app.place.value.kind === "overview" ? "list-link current" : "list-link"}
        href="#/overview"
        aria-current={app.place.value.kind === "overview" ? "page" : undefined}
      >
        <Icon name="overview" /> Overview
        {app.attention.value > 0 && (
          <span class="badge" role="img" aria-label={`${count(app.attention.value, "session")} wait for an answer`}>
            {app.attention.value}
          </span>
        )}
      </a>
      <a
        class={app.place.value.kind === "usage" ? "list-link current" : "list-link"}
        href="#/usage"
        aria-current={app.place.value.kind === "usage" ? "page" : undefined}
      >
        <Icon name="usage" /> Usage
      </a>
      <div class="list-rows">
        {pinned.length > 0 && <Rows title="Pinned" sessions={pinned} />}
        <Rows title={app.search.value ? "Found" : pinned.length ? "Others" : ""} sessions={others} />
        {sessions.length === 0 && <p class="aside padded">{app.search.value ? "No session contains this text." : "Your sessions appear here."}</p>}
        {app.more.value !== null && (
          <button type="button" class="wide-button more" onClick={() => void app.attempt(() => app.showMore())}>
            Show more
          </button>
        )}
      </div>
      <Footer />
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
  const isCurrent = app.open.value?.id === session.id;
  const isNews = session.unread === true && !isCurrent;
  return (
    <li class={isCurrent ? "row-item current" : "row-item"}>
      {renaming.value === session.id ? (
        <Renaming session={session} />
      ) : (
        <a
          href={`#/s/${encodeURIComponent(session.id)}`}
          title={visibleLine(session.title)}
          aria-current={isCurrent ? "page" : undefined}
          onClick={() => (app.listIsOpen.value = false)}
        >
          <span class={`dot ${session.status}`} role="img" aria-label={STATUS_WORDS[session.status] || "idle"} />
          <span class={isNews ? "row-title unread" : "row-title"} dir="auto">
            {isNews && <span class="hidden">Unread: </span>}
            {visibleLine(session.title) || "New session"}
          </span>
          {session.pending_requests > 0 && (
            <span class="badge" role="img" aria-label={`${count(session.pending_requests, "answer")} wanted`}>
              {session.pending_requests}
            </span>
          )}
          <time title={exactly(session.updated_at)}>{moment(session.updated_at)}</time>
        </a>
      )}
      <SessionMenu session={session} />
    </li>
  );
}

function Renaming({ session }: { session: SessionView }) {
  const app = useApp();
  const box = useRef<HTMLInputElement>(null);
  const isDone = useRef(false);
  useEffect(() => box.current?.select(), []);
  const leave = (): void => {
    isDone.current = true;
    renaming.value = null;
  };
  const save = async (): Promise<void> => {
    if (isDone.current) return;
    const title = box.current?.value.trim() ?? "";
    leave();
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
        dir="auto"
        defaultValue={session.title}
        maxLength={200}
        onBlur={() => void save()}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          event.stopPropagation();
          leave();
        }}
      />
    </form>
  );
}

const NOTIFYING_WORDS: Record<Notifying, string> = {
  unsupported: "This browser has no notifications",
  blocked: "The browser blocks notifications of this page",
  off: "Notify me when a session needs an answer",
  on: "Notifications are on; turn them off",
};

function Footer() {
  const app = useApp();
  const isPossible = notifying.value === "on" || notifying.value === "off";
  return (
    <footer class="list-foot">
      <FooterButton icon={theme.value} label={`Colours: ${THEMES[theme.value].toLowerCase()}`} run={nextTheme} />
      <FooterButton
        icon={notifying.value === "on" ? "bell" : "bell-off"}
        label={NOTIFYING_WORDS[notifying.value]}
        isPressed={notifying.value === "on"}
        isDisabled={!isPossible}
        run={() => void toggleNotifying()}
      />
      <FooterButton icon="bring" label="Import a session" run={() => chooseImport(app)} />
      <FooterButton icon="shield" label="Permissions" run={() => (dialog.value = { kind: "permissions" })} />
      <FooterButton icon="keys" label="Keys" run={() => (dialog.value = { kind: "keys" })} />
      <FooterButton icon="leave" label="Sign out" run={() => app.signOut()} />
    </footer>
  );
}

function FooterButton({
  icon,
  label,
  run,
  isPressed,
  isDisabled = false,
}: {
  icon: IconName;
  label: string;
  run: () => void;
  isPressed?: boolean;
  isDisabled?: boolean;
}) {
  return (
    <button type="button" class="quiet" aria-label={label} title={label} aria-pressed={isPressed} disabled={isDisabled} onClick={run}>
      <Icon name={icon} />
    </button>
  );
}
