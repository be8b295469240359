import assert from "node:assert/strict";
import { marked } from "marked";
import { test } from "node:test";
import { GrowingMarkdown } from "../src/markdown/blocks.ts";
import { shownHtml } from "../src/markdown/raw_html.ts";

const TEXT = `# Title

A paragraph with **bold** text.
It goes on.

- one
- two

  still two

| a | b |
|---|---|
| 1 | 2 |

\`\`\`python
def f():

    return 1
\`\`\`

> quoted

Last words.`;

test("growing by any steps ends with the same blocks as the whole", () => {
  const whole = marked.lexer(TEXT).map((token) => token.raw);
  for (const step of [1, 2, 7, 40]) {
    const growing = new GrowingMarkdown();
    let blocks = growing.blocks("");
    for (let end = step; end < TEXT.length + step; end += step) blocks = growing.blocks(TEXT.slice(0, end));
    assert.deepEqual(blocks.map((block) => block.raw), whole, `step ${step}`);
  }
});

test("blocks that are settled stay the very same", () => {
  const growing = new GrowingMarkdown();
  const first = growing.blocks("One.\n\nTwo.\n\nThree.\n\nFour.");
  const second = growing.blocks("One.\n\nTwo.\n\nThree.\n\nFour. And more.");
  assert.ok(first[0] === second[0]);
});

test("another text starts anew", () => {
  const growing = new GrowingMarkdown();
  growing.blocks("One.\n\nTwo.\n\nThree.\n\nFour.");
  assert.deepEqual(growing.blocks("Else.").map((block) => block.raw), ["Else."]);
});

test("tags are shown as they were written, but for a few plain ones without attributes", () => {
  assert.equal(shownHtml("a<br>b<BR />c"), "a<br>b<BR>c");
  assert.equal(shownHtml("x<sup>2</sup>"), "x<sup>2</sup>");
  assert.equal(shownHtml('<img src=x onerror="hurt()">'), "&lt;img src=x onerror=&quot;hurt()&quot;&gt;");
  assert.equal(shownHtml("<b onclick=hurt()>bold</b>"), "&lt;b onclick=hurt()&gt;bold</b>");
  assert.equal(shownHtml("<script>1 < 2 && hurt()</script>"), "&lt;script&gt;1 &lt; 2 &amp;&amp; hurt()&lt;/script&gt;");
});
