import assert from "node:assert/strict";
import { test } from "node:test";
import { visible, visibleLine } from "../src/view/escapes.ts";
import cases from "./escapes.json";

for (const { name, text, keep, shown } of cases) {
  test(`what a screen would obey or hide is shown: ${name}`, () => {
    assert.equal(visible(text, keep), shown);
    assert.equal(visible(shown, keep), shown);
  });
}

test("a name is one line", () => {
  assert.equal(visibleLine("a\nb\u202e"), "a\\u000ab\\u202e");
});
