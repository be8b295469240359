/** A session's log as a picture. */

import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";
import { moment } from "./words.ts";

export function TimelinePanel({ session }: { session: OpenSession }) {
  const app = useApp();
  session.drawn.value;
  return (
    <aside class="panel" aria-label="Timeline">
      <header>
        <h2>Timeline</h2>
        <button type="button" class="quiet" aria-label="Close the timeline" onClick={() => (app.panel.value = "none")}>
          <Icon name="close" />
        </button>
      </header>
      <ol class="log">
        {session.log.slice(-500).map((event) => (
          <li key={event.id}>
            <span class="aside">{event.position}</span> <code>{event.type}</code> <time>{moment(event.time)}</time>
          </li>
        ))}
      </ol>
    </aside>
  );
}
