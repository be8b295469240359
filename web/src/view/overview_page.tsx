/** All that runs and all that waits for somebody, at a glance. */

import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";
import { moment } from "./words.ts";

export function OverviewPage() {
  const app = useApp();
  const overview = app.overview.value;
  const counts = overview?.counts;
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
            <li key={session.id}>
              <a href={`#/s/${encodeURIComponent(session.id)}`}>
                <span class={`dot ${session.status}`} role="img" aria-label={session.status} />
                <span class="row-title">{session.title || "New session"}</span>
                <span class="aside">
                  {session.status === "waiting" ? "waits for an answer" : session.status} · {moment(session.updated_at)}
                </span>
              </a>
            </li>
          ))}
        </ul>
        {overview && overview.items.length === 0 && <p class="aside">Nothing yet. Start a session, and it shows up here.</p>}
      </div>
    </section>
  );
}
