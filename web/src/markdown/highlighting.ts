/** Colours for code. The highlighter is fetched when there is something to colour, and not before. */

const LONGEST = 50_000;

type Highlighter = typeof import("./highlighter.ts");

let loading: Promise<Highlighter> | null = null;

/** The code as HTML, or null where it stays as it is. */
export async function highlighted(text: string, language: string): Promise<string | null> {
  if (!language || text.length > LONGEST) return null;
  loading ??= import("./highlighter.ts");
  try {
    return (await loading).highlight(text, language);
  } catch {
    loading = null;
    return null;
  }
}
