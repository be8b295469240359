/** The overview: running sessions, and sessions that wait for an answer. */

import { useEffect, useState } from "preact/hooks";
import type { RequestView, SessionView } from "../api/wire.ts";
import { useApp } from "./context.ts";
import { visibleLine } from "./escapes.ts";
import { Icon } from "./icons.tsx";
import { count, exactly, moment } from "./words.ts";

/** Open requests are loaded for this many sessions at most. */
const MOST_ASKED = 20;

export function OverviewPage() {
  const app = useApp();
  const overview = app.overview.value;
  const counts = overview?.counts;
  const asked = useAsked(overview?.items ?? []);
  const figures = [
    ["Need an answer", counts?.needs_attention],
    ["Running", counts?.running],
    ["Queued", counts?.queued],
    ["Finished lately", counts?.finished_lately],
    ["Idle", counts?.idle],
  ] as const;
  return (
    <section class="overview" aria-labelledby="overview-title">
      <header class="chat-header">
        <button type="button" class="quiet only-phone" aria-label="Show the sessions" onClick={() => (app.listIsOpen.value = true)}>
          <Icon name="menu" />
        </button>
        <h1 id="overview-title">Overview</h1>
      </header>
      <div class="overview-body">
        <dl class="figures">
          {figures.map(([name, figure]) => (
            <div key={name} class={name === "Need an answer" && figure ? "figure attention" : "figure"}>
              <dt>{name}</dt>
              <dd>{figure ?? "…"}</dd>
            </div>
          ))}
        </dl>
        <ul class="cards">
          {overview?.items.map((session) => (
            <Card key={session.id} session={session} asked={asked.get(session.id)?.requests ?? []} />
          ))}
        </ul>
        {overview && overview.items.length === 0 && <p class="aside">No sessions yet. Start one, and it appears here.</p>}
      </div>
    </section>
  );
}

function Card({ session, asked }: { session: SessionView; asked: RequestView[] }) {
  const first = asked[0];
  const place = `#/s/${encodeURIComponent(session.id)}`;
  return (
    <li>
      <a class={session.status === "waiting" ? "card waiting" : "card"} href={first ? `${place}/${encodeURIComponent(first.id)}` : place}>
        <span class={`dot ${session.status}`} role="img" aria-label={session.status} />
        <span class="card-words">
          <span class={session.unread ? "row-title unread" : "row-title"} dir="auto">
            {session.unread && <span class="hidden">Unread: </span>}
            {visibleLine(session.title) || "New session"}
          </span>
          {first && (
            <span class="card-asked" dir="auto">
              {visibleLine(first.title)}
              {asked.length > 1 && ` · and ${asked.length - 1} more`}
            </span>
          )}
        </span>
        <span class="aside card-state">
          {session.status === "waiting" ? (
            session.pending_requests > 1 ? `${count(session.pending_requests, "answer")} wanted` : "waits for an answer"
          ) : (
            session.status
          )}{" "}
          · <time title={exactly(session.updated_at)}>{moment(session.updated_at)}</time>
        </span>
      </a>
    </li>
  );
}

type AskedOf = Map<string, { head: number; requests: RequestView[] }>;

/** The open requests of the sessions, loaded again when a session's state changes. */
function useAsked(sessions: SessionView[]): AskedOf {
  const app = useApp();
  const [asked, setAsked] = useState<AskedOf>(() => new Map());
  useEffect(() => {
    const waiting = sessions.filter((session) => session.pending_requests > 0).slice(0, MOST_ASKED);
    const changed = waiting.filter((session) => asked.get(session.id)?.head !== session.head);
    const isOld = [...asked.keys()].some((id) => !waiting.some((session) => session.id === id));
    if (changed.length === 0 && !isOld) return;
    let isWanted = true;
    void Promise.all(
      changed.map(async (session) => [session, await app.server.requests(session.id).catch(() => [])] as const),
    ).then((found) => {
      if (!isWanted) return;
      const kept = waiting.flatMap((session) => (asked.has(session.id) ? [[session.id, asked.get(session.id)!] as const] : []));
      setAsked(new Map([...kept, ...found.map(([session, requests]) => [session.id, { head: session.head, requests }] as const)]));
    });
    return () => {
      isWanted = false;
    };
  }, [sessions]);
  return asked;
}
