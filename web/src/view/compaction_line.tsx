/** The place where a compaction stands: one line, which opens to the summary that the model has instead of the older part. */

import { useState } from "preact/hooks";
import type { CompactionItem } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { visible } from "./escapes.ts";
import { Icon } from "./icons.tsx";
import { Markdown } from "./markdown.tsx";
import { count, digits } from "./words.ts";

/** `state` is the item's, as a property of its own: a component is rendered again only when a property changes. */
export function CompactionLine({ item, state, session }: { item: CompactionItem; state: CompactionItem["state"]; session: OpenSession }) {
  const [isOpen, setOpen] = useState(false);
  if (state === "failed") return <p class="aside compaction">{failure(item)}</p>;
  if (state === "running") {
    return (
      <div class="aside compaction running">
        <span role="status">Summarising the older part of the conversation …</span>
        <CancelButton session={session} />
      </div>
    );
  }
  const words = state === "done" ? "Context summarised" : "The older part of the context was left out";
  return (
    <section class="compaction">
      <button type="button" class="fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <Icon name="chevron" class={isOpen ? "open" : ""} /> {words}: {digits(item.tokensBefore)} → {digits(item.tokensAfter)} tokens
      </button>
      {isOpen && (
        <div class="thoughts">
          <p class="aside">{kept(item)}</p>
          {item.summary && <Markdown text={item.summary} />}
        </div>
      )}
    </section>
  );
}

/** The line itself shows that the summary was cancelled, in every tab. */
function CancelButton({ session }: { session: OpenSession }) {
  const app = useApp();
  const [isAsked, setAsked] = useState(false);
  const cancel = async (): Promise<void> => {
    setAsked(true);
    await app.attempt(() => app.server.cancelCompaction(session.id));
    setAsked(false);
  };
  return (
    <button type="button" disabled={isAsked} title="Give up this summary. The context stays as it is." onClick={() => void cancel()}>
      Cancel
    </button>
  );
}

function kept(item: CompactionItem): string {
  const instead = item.state === "done" ? "The model has this summary" : "The model has only a note";
  const why = item.state === "cut" && item.message ? ` ${visible(item.message)}` : "";
  return (
    `${instead} in place of ${count(item.removed, "earlier message")}; ${count(item.kept, "message")} of people ` +
    `stay${item.kept === 1 ? "s" : ""} word for word. You still see all of it.${why}`
  );
}

function failure(item: CompactionItem): string {
  if (item.error === "cancelled") return "The summary was cancelled. The context stays as it is.";
  return `No summary was made, so the context stays as it is. ${visible(item.message)}`.trim();
}
