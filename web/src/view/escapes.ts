/**
 * Characters that a screen obeys or does not show, as escapes that people can read.
 *
 * A person who approves a text from a model, a file or another person must see all of its characters. The command line
 * does the same in `src/holdfast/cli/escapes.py`; `test/escapes.json` has cases that both are tested with.
 */

const HIDDEN: readonly (readonly [number, number])[] = [
  [0x0000, 0x001f], // C0 controls
  [0x007f, 0x009f], // DEL and C1 controls
  [0x00ad, 0x00ad], // soft hyphen
  [0x034f, 0x034f], // combining grapheme joiner
  [0x061c, 0x061c], // Arabic letter mark
  [0x115f, 0x1160], // Hangul fillers
  [0x17b4, 0x17b5], // Khmer inherent vowels
  [0x180b, 0x180f], // Mongolian variation selectors, vowel separator
  [0x200b, 0x200f], // zero width, left-to-right and right-to-left marks
  [0x2028, 0x202e], // line and paragraph separators, bidi embeddings and overrides
  [0x2060, 0x206f], // word joiner, invisible operators, bidi isolates
  [0x2800, 0x2800], // Braille pattern without dots
  [0x3164, 0x3164], // Hangul filler
  [0xd800, 0xdfff], // half a character
  [0xfe00, 0xfe0f], // variation selectors
  [0xfeff, 0xfeff], // byte order mark
  [0xffa0, 0xffa0], // halfwidth Hangul filler
  [0xfff0, 0xfffb], // unassigned and not drawn, interlinear annotation
  [0x13430, 0x1345f], // Egyptian hieroglyph format controls, and the unassigned rest of their block
  [0x16fe4, 0x16fe4], // Khitan small script filler
  [0x1bca0, 0x1bca3], // shorthand format controls
  [0x1d159, 0x1d159], // musical null notehead
  [0x1d173, 0x1d17a], // musical controls
  [0xe0000, 0xe0fff], // tag characters, variation selectors of the supplement
];

/** Characters that are not escaped in a text of several lines. */
export const LINES = "\n\t";

/**
 * A character with the one selector that draws it as a picture. It is not escaped; a second selector after it is, like one
 * anywhere else: a row of selectors can hide any bytes.
 */
const EMOJI =
  "[\\u00a9\\u00ae\\u203c\\u2049\\u2122\\u2139\\u2194-\\u21aa\\u231a-\\u23fa\\u24c2\\u25aa-\\u27bf\\u2934-\\u2b55\\u3030\\u303d\\u3297\\u3299" +
  "\\u{1f000}-\\u{1faff}]\\ufe0f";

const ranges = HIDDEN.map(([first, last]) => `\\u{${first.toString(16)}}-\\u{${last.toString(16)}}`).join("");

const hidden = new RegExp(`${EMOJI}|[${ranges}]`, "gu");

/** The text with an escape, such as \u202e, in place of each character that a screen would obey or hide. */
export function visible(text: string, keep: string = LINES): string {
  return text.replace(hidden, (found) => ([...found].length > 1 || keep.includes(found) ? found : escapeOf(found.codePointAt(0)!)));
}

/** The same for a text of one line: a title, a name, a path. */
export function visibleLine(text: string): string {
  return visible(text, "");
}

function escapeOf(code: number): string {
  return code <= 0xffff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\u{${code.toString(16)}}`;
}
