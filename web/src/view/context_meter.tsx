/** How full the context of the session is, as a small bar. */

import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { digits } from "./words.ts";

export function ContextMeter({ session }: { session: OpenSession }) {
  const app = useApp();
  session.drawn.value;
  const context = app.context.value;
  const tokens = session.conversation.contextTokens ?? context?.tokens ?? null;
  const window = context?.window ?? null;
  if (tokens === null || !window) return null;
  const percent = Math.min(100, Math.floor((tokens * 100) / window));
  const share = context?.usage?.cache_share;
  const words = `${digits(tokens)} of ${digits(window)} tokens in the context`;
  const cached = share ? `. ${Math.floor(share * 100)} % of the session’s input came from the provider’s cache` : "";
  return (
    <span
      class={percent >= 80 ? "meter nearly-full" : "meter"}
      role="meter"
      aria-label="Context"
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={percent}
      aria-valuetext={`${percent} % full`}
      title={words + cached}
    >
      <span class="meter-bar" aria-hidden="true">
        <span style={{ width: `${Math.max(2, percent)}%` }} />
      </span>
      <span class="only-wide">{percent} %</span>
    </span>
  );
}
