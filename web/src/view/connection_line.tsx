/** The state of the connection, shown only while it is broken. */

import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";

export function ConnectionLine({ session }: { session: OpenSession | null }) {
  const app = useApp();
  const line = session?.line.value ?? (app.reachable.value ? "live" : "broken");
  return (
    <div class="line" role="status" aria-live="polite">
      {line === "broken" && (
        <>
          <span class="pulse" aria-hidden="true" /> <span>
            Reconnecting. <span class="only-wide">The work goes on; </span>nothing is lost.
          </span>
          <button type="button" class="link" onClick={() => app.hurry()}>
            Try now
          </button>
        </>
      )}
      {line === "refused" && "The server no longer accepts this browser’s key."}
    </div>
  );
}
