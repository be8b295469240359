/**
 * HTML in markdown. Tags are shown as text, because a model that writes about HTML means the words. A few plain tags
 * that are common in tables and lists are rendered, without attributes.
 */

const PLAIN = /&lt;(\/?)(br|sub|sup|kbd|b|i|em|strong|u|s|mark|details|summary)\s*\/?&gt;/gi;

export function shownHtml(raw: string): string {
  const escaped = raw.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
  return escaped.replace(PLAIN, "<$1$2>");
}
