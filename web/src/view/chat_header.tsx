/** The header of the open session: its title, and the buttons of its panels. */

import type { OpenSession } from "../model/open_session.ts";
import type { Panel } from "../model/app.ts";
import { useApp } from "./context.ts";
import { ContextMeter } from "./context_meter.tsx";
import { visibleLine } from "./escapes.ts";
import { Icon, type IconName } from "./icons.tsx";

export function ChatHeader({ session }: { session: OpenSession | null }) {
  const app = useApp();
  session?.drawn.value;
  const named = session ? session.conversation.title || app.current.value?.title : "";
  const title = visibleLine(named || "New session");
  const model = session?.conversation.model ?? app.settings.value?.model;
  return (
    <header class="chat-header">
      <button type="button" class="quiet only-phone" aria-label="Show the sessions" onClick={() => (app.listIsOpen.value = true)}>
        <Icon name="menu" />
        {app.attention.value > 0 && <span class="badge">{app.attention.value}</span>}
      </button>
      <h1 dir="auto" title={title}>
        {title}
      </h1>
      {session && <ContextMeter session={session} />}
      {model && <span class="aside only-wide">{visibleLine(model)}</span>}
      {session && (
        <>
          <PanelButton panel="tasks" icon="tasks" label="Tasks" />
          <PanelButton panel="timeline" icon="timeline" label="Timeline" />
        </>
      )}
    </header>
  );
}

function PanelButton({ panel, icon, label }: { panel: Panel; icon: IconName; label: string }) {
  const app = useApp();
  const isOpen = app.panel.value === panel;
  return (
    <button type="button" class="quiet" aria-pressed={isOpen} aria-label={label} title={label} onClick={() => (app.panel.value = isOpen ? "none" : panel)}>
      <Icon name={icon} /> <span class="only-wide">{label}</span>
    </button>
  );
}
