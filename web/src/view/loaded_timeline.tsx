/** The timeline, whose code is loaded when it is first opened. */

import { useEffect, useState } from "preact/hooks";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";

type Panel = (typeof import("./timeline_panel.tsx"))["TimelinePanel"];

let loaded: Panel | null = null;

export function LoadedTimeline({ session }: { session: OpenSession }) {
  const app = useApp();
  const [Panel, setPanel] = useState<Panel | null>(() => loaded);
  useEffect(() => {
    if (Panel) return;
    import("./timeline_panel.tsx").then(
      (found) => {
        loaded = found.TimelinePanel;
        setPanel(() => loaded);
      },
      () => {
        app.panel.value = "none";
        app.tell("The timeline could not be loaded. Load the page anew.", "error");
      },
    );
  }, []);
  if (Panel) return <Panel session={session} />;
  return <aside class="panel timeline" aria-label="Timeline" aria-busy="true" />;
}
