/** Parts of the page whose code is loaded when they are first shown. */

import type { ComponentType, VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";

type OfSession = { session: OpenSession };

export const LoadedTimeline = loaded<OfSession>(async () => (await import("./timeline_panel.tsx")).TimelinePanel);

export const LoadedTasks = loaded<OfSession>(async () => (await import("./tasks_panel.tsx")).TasksPanel);

export const LoadedUsage = loaded(async () => (await import("./usage_page.tsx")).UsagePage);

export const LoadedOverview = loaded(async () => (await import("./overview_page.tsx")).OverviewPage);

/** The part, or nothing until its code has come. */
function loaded<Props extends object>(load: () => Promise<ComponentType<Props>>): (props: Props) => VNode {
  let known: ComponentType<Props> | null = null;
  return function Loaded(props) {
    const app = useApp();
    const [Part, setPart] = useState<ComponentType<Props> | null>(() => known);
    useEffect(() => {
      if (Part) return;
      load().then(
        (found) => {
          known = found;
          setPart(() => known);
        },
        () => {
          app.panel.value = "none";
          app.tell("A part of the page could not be loaded. Load the page anew.", "error");
        },
      );
    }, []);
    return Part ? <Part {...props} /> : <section aria-busy="true" />;
  };
}
