/** The layout of the page: the list at the side, the open session in the middle, a panel beside it. */

import { useSignalEffect } from "@preact/signals";
import type { Place } from "../model/app.ts";
import { useApp } from "./context.ts";
import { Chat } from "./chat.tsx";
import { LoadedOverview, LoadedTasks, LoadedTimeline, LoadedUsage } from "./loaded.tsx";
import { Notices } from "./notices.tsx";
import { Palette } from "./palette.tsx";
import { SessionList } from "./session_list.tsx";
import { OtherKey, SignIn } from "./sign_in.tsx";
import { useAttention } from "./attention.ts";
import { Dialogs } from "./dialogs.tsx";
import { useSeen } from "./seen.ts";
import { useShortcuts } from "./shortcuts.ts";

export function Shell() {
  const app = useApp();
  useShortcuts(app);
  useAttention(app);
  useSeen(app);
  useSignalEffect(() => {
    document.body.classList.toggle("list-open", app.listIsOpen.value);
  });
  if (app.mustSignIn.value) return <SignIn />;
  return (
    <>
      <a class="skip" href="#composer" onClick={toTheBox}>
        Skip to the message box
      </a>
      <div class="frame" data-panel={app.panel.value}>
        <SessionList />
        <main class="middle">
          <Middle kind={app.place.value.kind} />
        </main>
        {app.open.value && app.panel.value === "tasks" && <LoadedTasks session={app.open.value} />}
        {app.open.value && app.panel.value === "timeline" && <LoadedTimeline session={app.open.value} />}
      </div>
      {app.paletteIsOpen.value && <Palette />}
      <Dialogs />
      <OtherKey />
      <Notices />
    </>
  );
}

function Middle({ kind }: { kind: Place["kind"] }) {
  switch (kind) {
    case "overview":
      return <LoadedOverview />;
    case "usage":
      return <LoadedUsage />;
    default:
      return <Chat />;
  }
}

/** Moves the focus by script: an address with a fragment would open another view of this page. */
function toTheBox(event: Event): void {
  event.preventDefault();
  document.getElementById("composer")?.focus();
}
