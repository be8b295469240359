/** The reasoning of the model: a line with its duration, which opens to the whole text. */

import { useEffect, useState } from "preact/hooks";
import { Icon } from "./icons.tsx";
import { Markdown } from "./markdown.tsx";
import { duration } from "./words.ts";

/** `durationMs` comes from the log; until it is there, the time is measured here, if the page saw the beginning. */
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
