/** Syntax highlighting. The highlighter is loaded when the first code has to be highlighted. */

const LONGEST = 50_000;
/** Highlighting this many characters takes a millisecond or two. */
const LONGEST_AT_ONCE = 2_000;

type Highlighter = typeof import("./highlighter.ts");

let loading: Promise<Highlighter> | null = null;
let loaded: Highlighter | null = null;

/** The same synchronously, if the highlighter is already loaded, so that the code is rendered only once. */
export function highlightedNow(text: string, language: string): string | null {
  return loaded && language && text.length <= LONGEST_AT_ONCE ? loaded.highlight(text, language) : null;
}

/** The code as HTML, or null if it is not highlighted. */
export async function highlighted(text: string, language: string): Promise<string | null> {
  if (!language || text.length > LONGEST) return null;
  loading ??= load();
  try {
    loaded = await loading;
    return loaded.highlight(text, language);
  } catch {
    loading = null;
    return null;
  }
}

async function load(): Promise<Highlighter> {
  const found = await import("./highlighter.ts");
  await found.prepare();
  return found;
}
