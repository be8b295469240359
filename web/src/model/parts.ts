/** A conversation in parts, each rendered as a whole or not at all. An unchanged part stays the same object. */

import type { Item } from "./conversation.ts";

/** The size of a part in positions of the log: a turn or two, rendered in a fraction of a frame. */
const PART_POSITIONS = 12;

/** How many parts make a stretch. */
const STRETCH_PARTS = 20;

export interface PartOfThread {
  key: number;
  items: Item[];
  isLast: boolean;
  /** The sum of all versions, which only rises. */
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

/** Parts grouped into stretches: a long thread has many parts, and few of them change at a time. */
export function stretchesOf(parts: PartOfThread[]): { key: number; parts: PartOfThread[] }[] {
  const stretches: { key: number; parts: PartOfThread[] }[] = [];
  for (const part of parts) {
    const key = Math.floor(part.key / STRETCH_PARTS);
    const last = stretches.at(-1);
    if (last?.key === key) last.parts.push(part);
    else stretches.push({ key, parts: [part] });
  }
  return stretches;
}
