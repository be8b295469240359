/** A conversation in parts, which are drawn or not, each as a whole. A part in which nothing changed stays the same object. */

import type { Item } from "./conversation.ts";

/** Of about so many positions of the log: a few turns, which are drawn well within a frame. */
const PART_POSITIONS = 30;

export interface PartOfThread {
  key: number;
  items: Item[];
  isLast: boolean;
  /** All versions together: they only rise. */
  version: number;
}

export function partsOf(items: Item[], before: PartOfThread[] = []): PartOfThread[] {
  const parts: PartOfThread[] = [];
  for (const item of items) {
    const key = Math.floor(item.place / PART_POSITIONS);
    let last = parts.at(-1);
    if (!last || last.key < key) parts.push((last = { key, items: [], isLast: false, version: 0 }));
    last.items.push(item);
    last.version += item.version;
  }
  const last = parts.at(-1);
  if (last) last.isLast = true;
  const known = new Map(before.map((part) => [part.key, part]));
  return parts.map((part) => {
    const old = known.get(part.key);
    return old && isSame(old, part) ? old : part;
  });
}

function isSame(one: PartOfThread, other: PartOfThread): boolean {
  return (
    one.version === other.version &&
    one.isLast === other.isLast &&
    one.items.length === other.items.length &&
    one.items.every((item, index) => item === other.items[index])
  );
}
