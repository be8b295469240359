/** One answer of the model: reasoning, text and tool calls in the order in which they came. */

import type { AssistantItem, Block } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { Markdown, CopyButton } from "./markdown.tsx";
import { Reasoning } from "./reasoning.tsx";
import { ToolCard } from "./tool_card.tsx";

export function AssistantMessage({ item, session }: { item: AssistantItem; session: OpenSession }) {
  const text = item.blocks.map((block) => (block?.kind === "text" ? block.text : "")).join("");
  if (item.blocks.length === 0) return null;
  return (
    <article class={`assistant ${item.state}`} aria-label="Answer">
      {item.blocks.map((block, index) => (
        <BlockView key={index} block={block} item={item} isLast={index === item.blocks.length - 1} session={session} />
      ))}
      {item.state === "interrupted" && <p class="interrupted">Interrupted here. The text up to this point is kept.</p>}
      {text && item.state !== "streaming" && (
        <footer class="under">
          <CopyButton text={text} label="Copy answer" />
          {item.model && item.model !== session.conversation.model && <span class="aside">{item.model}</span>}
        </footer>
      )}
    </article>
  );
}

function BlockView({
  block,
  item,
  isLast,
  session,
}: {
  block: Block | undefined;
  item: AssistantItem;
  isLast: boolean;
  session: OpenSession;
}) {
  if (!block) return null;
  if (block.kind === "text") return block.text ? <Markdown text={block.text} /> : null;
  // Without a text, only its provider can read it.
  if (block.kind === "reasoning") {
    return block.text ? <Reasoning text={block.text} durationMs={block.durationMs} isLive={isLast && item.state === "streaming"} /> : null;
  }
  const call = session.conversation.calls.get(block.callId);
  return call ? <ToolCard call={call} session={session} /> : null;
}
