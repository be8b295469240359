/** Streaming markdown: sanitized block by block, with code that can be copied. */

import DOMPurify from "dompurify";
import { marked, type Token, type Tokens } from "marked";
import { memo } from "preact/compat";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { GrowingMarkdown, type MarkdownBlock } from "../markdown/blocks.ts";
import { highlighted, highlightedNow } from "../markdown/highlighting.ts";
import { shownHtml } from "../markdown/raw_html.ts";
import { visible } from "./escapes.ts";
import { Icon } from "./icons.tsx";

marked.use({ renderer: { html: ({ text }) => shownHtml(text) } });

export function Markdown({ text }: { text: string }) {
  const growing = useRef<GrowingMarkdown>(null);
  growing.current ??= new GrowingMarkdown();
  return (
    <div class="markdown">
      {chaptersOf(growing.current.blocks(text)).map((blocks, index) => (
        <Chapter key={index} blocks={blocks} />
      ))}
    </div>
  );
}

/** Groups of blocks. While a long answer grows, full groups need not be compared again. */
const CHAPTER_BLOCKS = 20;

function chaptersOf(blocks: MarkdownBlock[]): MarkdownBlock[][] {
  const chapters: MarkdownBlock[][] = [];
  for (let at = 0; at < blocks.length; at += CHAPTER_BLOCKS) chapters.push(blocks.slice(at, at + CHAPTER_BLOCKS));
  return chapters;
}

/** Comparing the first and the last block is enough: a finished block stays the same object, and so do those before it. */
const Chapter = memo(
  function Chapter({ blocks }: { blocks: MarkdownBlock[] }) {
    return (
      <>
        {blocks.map((block) => (
          <Block key={block.key} raw={block.raw} token={block.token} />
        ))}
      </>
    );
  },
  ({ blocks: before }, { blocks: after }) => before.length === after.length && before[0] === after[0] && before.at(-1) === after.at(-1),
);

const Block = memo(
  function Block({ token }: { raw: string; token: Token }) {
    if (token.type === "space") return null;
    if (token.type === "code") return <Code text={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ""} />;
    const html = cleaned(marked.parser([token]));
    return <div class={token.type === "table" ? "wide" : undefined} dangerouslySetInnerHTML={{ __html: html }} />;
  },
  (before, after) => before.raw === after.raw,
);

/** Text of a model is not trusted: no scripts, no forms, no pictures from other hosts, links in a new tab.
    Its HTML was made text before, so that nothing hostile is even parsed. */
function cleaned(html: string): string {
  bench.innerHTML = html;
  DOMPurify.sanitize(bench);
  return bench.innerHTML;
}

/** An inert document for sanitizing. One for each block would cost more than the sanitizing itself. */
const bench = document.implementation.createHTMLDocument().body.appendChild(document.createElement("div"));

// Configured once: doing it for each block would take as long as the sanitizing.
DOMPurify.setConfig({
  IN_PLACE: true,
  FORBID_TAGS: ["style", "form", "input", "button", "img", "svg", "math", "video", "audio", "iframe"],
  FORBID_ATTR: ["style", "class", "id", "name"],
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

/** Code is highlighted this long after its last change; before that, every frame would highlight it again. */
const STILL_MS = 100;

function coloured(of: string, html: string | null): { of: string; html: string } | null {
  return html === null ? null : { of, html };
}

/** Code, with escapes for the characters that a screen would obey or hide. Copying gives the code itself. */
export function Code({ text: code, language }: { text: string; language: string }) {
  const text = useMemo(() => visible(code), [code]);
  const name = /^[\w+#.-]*/.exec(language)?.[0] ?? "";
  const [html, setHtml] = useState(() => coloured(text, highlightedNow(text, name)));
  useEffect(() => {
    if (html?.of === text) return;
    let isWanted = true;
    const timer = setTimeout(async () => {
      const found = coloured(text, await highlighted(text, name));
      if (isWanted && found) setHtml(found);
    }, STILL_MS);
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, [text, name]);
  return (
    <figure class="code">
      <figcaption>
        <span>{name || "text"}</span>
        <CopyButton text={code} label="Copy code" />
      </figcaption>
      {/* Plain text is shown while more arrives: the highlighted version is already outdated. */}
      {html?.of === text ? (
        <pre tabIndex={0} dir="ltr">
          <code dangerouslySetInnerHTML={{ __html: html.html }} />
        </pre>
      ) : (
        <pre tabIndex={0} dir="ltr">
          <code>{text}</code>
        </pre>
      )}
    </figure>
  );
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async (): Promise<void> => {
    await navigator.clipboard?.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1_500);
  };
  return (
    <button type="button" class="quiet" aria-label={isCopied ? "Copied" : label} title={label} onClick={() => void copy()}>
      <Icon name={isCopied ? "check" : "copy"} />
    </button>
  );
}
