/** Markdown as it streams in: block by block, cleaned, with code that can be copied. */

import DOMPurify from "dompurify";
import { marked, type Token, type Tokens } from "marked";
import { memo } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";
import { GrowingMarkdown } from "../markdown/blocks.ts";
import { highlighted } from "../markdown/highlighting.ts";
import { shownHtml } from "../markdown/raw_html.ts";
import { Icon } from "./icons.tsx";

marked.use({ renderer: { html: ({ text }) => shownHtml(text) } });

export function Markdown({ text }: { text: string }) {
  const growing = useRef<GrowingMarkdown>(null);
  growing.current ??= new GrowingMarkdown();
  return (
    <div class="markdown">
      {growing.current.blocks(text).map((block) => (
        <Block key={block.key} raw={block.raw} token={block.token} />
      ))}
    </div>
  );
}

const Block = memo(
  function Block({ token }: { raw: string; token: Token }) {
    if (token.type === "space") return null;
    if (token.type === "code") return <Code text={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ""} />;
    const html = cleaned(marked.parser([token]));
    return <div class={token.type === "table" ? "wide" : undefined} dangerouslySetInnerHTML={{ __html: html }} />;
  },
  (before, after) => before.raw === after.raw,
);

/** What a model writes is not trusted: no scripts, no forms, no pictures from elsewhere, links open apart.
    Its HTML was made text before, so that nothing hostile is even parsed. */
function cleaned(html: string): string {
  return DOMPurify.sanitize(html);
}

// Set once: to work it out anew for each block would take as long as the cleaning.
DOMPurify.setConfig({
  FORBID_TAGS: ["style", "form", "input", "button", "img", "svg", "math", "video", "audio", "iframe"],
  FORBID_ATTR: ["style", "class", "id", "name"],
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

export function Code({ text, language }: { text: string; language: string }) {
  const name = /^[\w+#.-]*/.exec(language)?.[0] ?? "";
  const [html, setHtml] = useState<{ of: string; html: string } | null>(null);
  useEffect(() => {
    let isWanted = true;
    void highlighted(text, name).then((found) => {
      if (isWanted && found !== null) setHtml({ of: text, html: found });
    });
    return () => {
      isWanted = false;
    };
  }, [text, name]);
  return (
    <figure class="code">
      <figcaption>
        <span>{name || "text"}</span>
        <CopyButton text={text} label="Copy code" />
      </figcaption>
      {/* While more of it comes in, the plain text is shown: what was highlighted is already old. */}
      {html?.of === text ? (
        <pre tabIndex={0}>
          <code dangerouslySetInnerHTML={{ __html: html.html }} />
        </pre>
      ) : (
        <pre tabIndex={0}>
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
