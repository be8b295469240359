/** The page's markdown alone. Tests call `drawn` to see which elements a text becomes. */

import { render } from "preact";
import { highlighted } from "../src/markdown/highlighting.ts";
import { Markdown } from "../src/view/markdown.tsx";

/** An element's name, and the names and values of its attributes. */
type Drawn = [string, [string, string][]];

declare global {
  interface Window {
    /** Until then code is not coloured. */
    ready: Promise<unknown>;
    drawn: (pieces: string[]) => Drawn[];
    hurt: () => void;
    hurts: number;
  }
}

window.ready = highlighted("x = 1", "python");
window.hurts = 0;
window.hurt = () => {
  window.hurts += 1;
};

/** All elements that a text is drawn with which came in these pieces. */
window.drawn = (pieces) => {
  const place = document.createElement("main");
  document.body.replaceChildren(place);
  let text = "";
  for (const piece of pieces) {
    text += piece;
    render(<Markdown text={text} />, place);
  }
  const elements = [...place.querySelectorAll("*")];
  for (const element of elements) if (element instanceof HTMLElement && !element.closest("button")) poke(element);
  const found = elements.map((element): Drawn => [
    element.tagName.toLowerCase(),
    [...element.attributes].map(({ name, value }): [string, string] => [name, value]),
  ]);
  render(null, place);
  return found;
};

/** What a person might do to it by accident. A link is looked at by its address, and not followed. */
function poke(element: HTMLElement): void {
  for (const name of ["mouseover", "focus", "error", "load", "toggle", "animationend"]) {
    element.dispatchEvent(new Event(name, { bubbles: true }));
  }
  if (!element.closest("a")) element.click();
}
