/** The duration of a turn, and its tokens and cost as far as the provider reported them. */

import { usageOf, type EndItem, type Usage } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { digits, duration, exactly, moment } from "./words.ts";

export function TurnFigures({ item, session }: { item: EndItem; session: OpenSession }) {
  const usage = usageOf(session.conversation.ofTurn(item.turnId), item.turnId);
  const tokens = usage && usage.inputTokens !== null && usage.outputTokens !== null ? [usage.inputTokens, usage.outputTokens] : null;
  return (
    <span class="figures-line">
      <time title={exactly(item.time)}>{moment(item.time)}</time> · {duration(item.durationMs)}
      {tokens && (
        <span title={`${digits(tokens[0]!)} in${cached(usage)}, ${digits(tokens[1]!)} out`}>
          {" "}
          · {digits(tokens[0]! + tokens[1]!)} tokens
        </span>
      )}
      {!!usage?.costMicrodollars && <span> · {money(usage.costMicrodollars)}</span>}
    </span>
  );
}

function cached(usage: Usage | null): string {
  return usage?.cacheReadTokens && usage.inputTokens ? ` (${Math.floor((usage.cacheReadTokens * 100) / usage.inputTokens)} % from the cache)` : "";
}

/** Dollars with as many digits as a small amount needs. */
export function money(microdollars: number): string {
  const dollars = Math.abs(microdollars) / 1_000_000;
  return `${microdollars < 0 ? "-" : ""}$${dollars >= 1 || dollars === 0 ? dollars.toFixed(2) : dollars.toPrecision(2)}`;
}
