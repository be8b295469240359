/**
 * Markdown that grows: cut into blocks, each drawn for itself. While text streams in only the last blocks change, so that
 * what stands above does not flicker, and a long answer costs no more for each word than a short one.
 */

import { marked, type Token } from "marked";

export interface MarkdownBlock {
  key: number;
  /** The source, which is also what decides whether it has to be drawn again. */
  raw: string;
  token: Token;
}

/** A list or a paragraph may still join with what follows, so that the last ones are looked at again. */
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
