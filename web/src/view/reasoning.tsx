/** What the model thought before it spoke: one line with how long it took, and all of it for who wants it. */

import { useEffect, useState } from "preact/hooks";
import { Icon } from "./icons.tsx";
import { Markdown } from "./markdown.tsx";
import { duration } from "./words.ts";

/** `durationMs` is what the log says, once it says it; until then it is measured here, if its beginning was seen. */
export function Reasoning({ text, durationMs, isLive }: { text: string; durationMs: number; isLive: boolean }) {
  const [isOpen, setOpen] = useState(false);
  const [took, setTook] = useState(0);
  const [since] = useState(() => (isLive ? performance.now() : null));
  useEffect(() => {
    if (!isLive && since !== null) setTook(performance.now() - since);
  }, [isLive]);
  const passed = durationMs || took;
  const words = isLive ? "Thinking …" : passed ? `Thought for ${duration(passed)}` : "Thought";
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
