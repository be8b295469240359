/**
 * Streaming markdown, split into blocks that are rendered separately. While text arrives only the last blocks change, so
 * that the text above does not flicker, and a word costs the same in a long answer as in a short one.
 */

import { marked, type Token } from "marked";

export interface MarkdownBlock {
  key: number;
  /** The source text. The block is rendered again when it changes. */
  raw: string;
  token: Token;
}

/** The last blocks are parsed again, because a list or a paragraph may continue in the text that follows. */
const UNSETTLED = 2;

export class GrowingMarkdown {
  private settled: MarkdownBlock[] = [];
  private settledLength = 0;
  private text = "";

  blocks(text: string): MarkdownBlock[] {
    if (!text.startsWith(this.text.slice(0, this.settledLength)) || text.length < this.settledLength) this.reset();
    this.text = text;
    const fresh = this.cut(text.slice(this.settledLength));
    const all = [...this.settled, ...fresh];
    this.settle(fresh);
    return all;
  }

  private cut(rest: string): MarkdownBlock[] {
    const first = this.settled.length;
    return marked.lexer(rest, { gfm: true }).map((token, index) => ({ key: first + index, raw: token.raw, token }));
  }

  private settle(fresh: MarkdownBlock[]): void {
    const settled = fresh.slice(0, Math.max(0, fresh.length - UNSETTLED));
    this.settled.push(...settled);
    for (const block of settled) this.settledLength += block.raw.length;
  }

  private reset(): void {
    this.settled = [];
    this.settledLength = 0;
  }
}
