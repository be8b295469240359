/**
 * HTML within markdown. A model that writes about HTML means the words, so that tags are shown as they were written; only
 * a few plain ones, which people use inside of tables and lists, do what they say. None of them has attributes.
 */

const PLAIN = /&lt;(\/?)(br|sub|sup|kbd|b|i|em|strong|u|s|mark|details|summary)\s*\/?&gt;/gi;

export function shownHtml(raw: string): string {
  const escaped = raw.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
  return escaped.replace(PLAIN, "<$1$2>");
}
