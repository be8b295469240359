/** Colours for code. The highlighter is fetched when there is something to colour, and not before. */

const LONGEST = 50_000;
/** This much takes a millisecond or two. */
const LONGEST_AT_ONCE = 2_000;

type Highlighter = typeof import("./highlighter.ts");

let loading: Promise<Highlighter> | null = null;
let loaded: Highlighter | null = null;

/** The same at once, if the highlighter is here already; what is drawn with its colours need not be drawn again. */
export function highlightedNow(text: string, language: string): string | null {
  return loaded && language && text.length <= LONGEST_AT_ONCE ? loaded.highlight(text, language) : null;
}

/** The code as HTML, or null where it stays as it is. */
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
