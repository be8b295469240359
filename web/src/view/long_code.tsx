/** Text of any length: its beginning, and more on demand, so that megabytes do not block the page. */

import { useMemo, useState } from "preact/hooks";
import { Code } from "./markdown.tsx";
import { beginningOf } from "./tool_words.ts";

const FIRST = 3_000;
const TIMES = 8;
const MOST = 400_000;
const MOST_COLOURED = 30_000;

/** A text that a person has to approve: its beginning, and on demand all of it. `show` is called when they open it. */
export function WholeCode({ text, language, isShown, show }: { text: string; language: string; isShown: boolean; show: () => void }) {
  const shown = isShown ? text : beginningOf(text, FIRST);
  const left = text.length - shown.length;
  return (
    <>
      <Code text={shown} language={shown.length <= MOST_COLOURED ? language : ""} />
      {left > 0 && (
        <button type="button" class="link" onClick={show}>
          Show all of it ({left.toLocaleString()} more characters)
        </button>
      )}
    </>
  );
}

/** Whether the beginning is the whole text. */
export function isShort(text: string): boolean {
  return text.length <= FIRST;
}

export function LongCode({ text, language }: { text: string; language: string }) {
  const [limit, setLimit] = useState(FIRST);
  const shown = useMemo(() => beginningOf(text, limit), [text, limit]);
  const left = text.length - shown.length;
  return (
    <>
      <Code text={shown} language={shown.length <= MOST_COLOURED ? language : ""} />
      {left > 0 && (
        <p class="aside">
          {limit < MOST ? (
            <button type="button" class="link" onClick={() => setLimit(limit * TIMES)}>
              Show more ({left.toLocaleString()} characters are left)
            </button>
          ) : (
            `${left.toLocaleString()} more characters are not shown here. The exported session has all of them.`
          )}
        </p>
      )}
    </>
  );
}
