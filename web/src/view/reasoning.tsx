/** What the model thought before it spoke: one line, and all of it for who wants it. */

import { useEffect, useState } from "preact/hooks";
import { Icon } from "./icons.tsx";
import { Markdown } from "./markdown.tsx";
import { duration } from "./words.ts";

export function Reasoning({ text, isLive }: { text: string; isLive: boolean }) {
  const [isOpen, setOpen] = useState(false);
  const [took, setTook] = useState<number | null>(null);
  const [since] = useState(() => (isLive ? performance.now() : null));
  useEffect(() => {
    if (!isLive && since !== null && took === null) setTook(performance.now() - since);
  }, [isLive]);
  const words = isLive ? "Thinking …" : took === null ? "Thought" : `Thought for ${duration(took)}`;
  return (
    <section class={isLive ? "reasoning live" : "reasoning"}>
      <button type="button" class="fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <Icon name="chevron" class={isOpen ? "open" : ""} /> {words}
      </button>
      {isOpen && (
        <div class="thoughts">
          <Markdown text={text} />
        </div>
      )}
    </section>
  );
}
