/** One item of a conversation. It is rendered again only when its version rises. */

import { memo } from "preact/compat";
import type { EndItem, ErrorItem, Item, TaskItem } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { AssistantMessage } from "./assistant_message.tsx";
import { CompactionLine } from "./compaction_line.tsx";
import { useApp } from "./context.ts";
import { visible } from "./escapes.ts";
import { Icon } from "./icons.tsx";
import { UserMessage } from "./user_message.tsx";
import { TurnFigures } from "./turn_figures.tsx";

interface Props {
  item: Item;
  version: number;
  session: OpenSession;
}

export const ItemView = memo(
  function ItemView({ item, session }: Props) {
    switch (item.kind) {
      case "user":
        return <UserMessage item={item} session={session} isPinned={session.conversation.isPinned(item.messageId)} />;
      case "assistant":
        return <AssistantMessage item={item} session={session} />;
      case "error":
        return <ErrorLine item={item} session={session} />;
      case "end":
        return <EndLine item={item} session={session} />;
      case "task":
        return <TaskLine item={item} />;
      case "compaction":
        return <CompactionLine item={item} state={item.state} session={session} />;
      case "info":
        return <p class={`aside ${item.level}`}>{visible(item.message)}</p>;
    }
  },
  (before, after) => before.item === after.item && before.version === after.version && before.session === after.session,
);

/** Has the message of a turn answered again. A turn that a task started, or that is not loaded, has no message. */
function useAgain(item: ErrorItem | EndItem, session: OpenSession): (() => void) | null {
  const app = useApp();
  const asked = session.conversation.ofTurn(item.turnId).find((found) => found.kind === "user");
  if (asked?.kind !== "user") return null;
  return () => void app.attempt(() => app.server.regenerate(session.id, asked.messageId, item.turnId));
}

/** Has the model go on after a turn that ended for want of money, as long as nothing came after it. */
function useGoOn(item: ErrorItem, session: OpenSession): (() => void) | null {
  const app = useApp();
  session.drawn.value;
  const { items, turn } = session.conversation;
  const last = items.filter((found) => found.kind !== "end").at(-1);
  if (item.code !== "over_budget" || last !== item || turn !== null) return null;
  return () => void app.attempt(() => app.server.goOn(session.id));
}

function ErrorLine({ item, session }: { item: ErrorItem; session: OpenSession }) {
  const again = useAgain(item, session);
  const goOn = useGoOn(item, session);
  return (
    <div class="problem-card" role="alert">
      <Icon name="warning" />
      <div>
        <p>{visible(item.message)}</p>
        <p class="aside">{visible(item.code)}</p>
      </div>
      {goOn && (
        <button type="button" class="primary" onClick={goOn} title="Ask the model to go on where it stopped">
          Go on
        </button>
      )}
      {again && (
        <button type="button" onClick={again} title="Ask the model for another answer">
          <Icon name="retry" /> Try again
        </button>
      )}
    </div>
  );
}

function EndLine({ item, session }: { item: EndItem; session: OpenSession }) {
  const app = useApp();
  const words = { completed: "", stopped: "Stopped", error: "", interrupted: "Interrupted" }[item.reason];
  const again = useAgain(item, session);
  return (
    <footer class="end">
      {words && <strong>{words}</strong>}
      <TurnFigures item={item} session={session} />
      {again && (
        <button type="button" class="quiet" title="Answer again" aria-label="Answer again" onClick={again}>
          <Icon name="retry" />
        </button>
      )}
      <button
        type="button"
        class="quiet"
        title="Continue from here in a new session"
        aria-label="Continue from here in a new session"
        onClick={() => void forkHere(app, session.id, item.position)}
      >
        <Icon name="fork" />
      </button>
    </footer>
  );
}

async function forkHere(app: ReturnType<typeof useApp>, id: string, position: number): Promise<void> {
  const made = await app.attempt(() => app.server.fork(id, position));
  if (!made) return;
  app.put(made);
  app.go({ kind: "session", id: made.id });
}

function TaskLine({ item }: { item: TaskItem }) {
  const app = useApp();
  const words: Record<string, string> = {
    completed: "finished",
    failed: item.exitCode === null ? "failed" : `failed with ${item.exitCode}`,
    killed: "was ended",
    lost: "was lost",
    stalled: "is quiet and seems to wait for an answer",
  };
  return (
    <div class={`task-line ${item.status}`}>
      <Icon name="tasks" />
      <p>
        <code>{visible(item.description || item.command)}</code> {words[item.status] ?? item.status}
        {item.detail && `: ${visible(item.detail)}`}
      </p>
      <button type="button" class="link" onClick={() => (app.panel.value = "tasks")}>
        Output
      </button>
    </div>
  );
}
