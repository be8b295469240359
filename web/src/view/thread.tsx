/** The conversation, from the first message to the message in flight. Parts far from the visible area are not rendered. */

import { useComputed } from "@preact/signals";
import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Conversation } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { MessageFiles } from "./files.tsx";
import type { Outgoing } from "../model/outbox.ts";
import { partsOf, stretchesOf, type PartOfThread } from "../model/parts.ts";
import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";
import { ItemView } from "./item_view.tsx";
import { Nearness } from "./nearness.ts";
import { Working } from "./working.tsx";

const NEAR_BOTTOM_PX = 60;
/** Earlier messages are loaded this many screens before the top is reached. */
const FETCHED_SCREENS = 8;
/** How far above and below the visible area parts are rendered, and stretches are mounted. */
const DRAWN = "200% 0px";
const THERE = "600% 0px";
/** If a thread grows within this time after a press in it, the person opened something. */
const OPENING_MS = 500;

export function Thread({ session }: { session: OpenSession }) {
  const app = useApp();
  const scroller = useRef<HTMLDivElement>(null);
  const [isAtBottom, setAtBottom] = useState(true);
  const sticks = useRef(true);
  session.drawn.value;
  const { conversation } = session;
  const outgoing = useComputed(() => app.outbox.value?.waiting.value ?? []).value;

  const toBottom = (): void => {
    const box = scroller.current;
    if (box) box.scrollTop = box.scrollHeight;
  };
  const scrolled = (): void => {
    const box = scroller.current;
    if (!box) return;
    const isNear = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_BOTTOM_PX;
    sticks.current = isNear;
    setAtBottom(isNear);
    if (box.scrollTop < FETCHED_SCREENS * box.clientHeight && session.loaded.value) void app.attempt(() => older(session));
  };
  const pressedAt = useRef(-Infinity);
  const pressed = (): void => {
    pressedAt.current = performance.now();
  };
  useEffect(() => {
    const box = scroller.current;
    const column = box?.firstElementChild;
    if (!box || !column) return;
    // After a change of width or late highlighting the end stays visible, but not if the person opened something.
    const observer = new ResizeObserver(() => {
      if (sticks.current && performance.now() - pressedAt.current > OPENING_MS) toBottom();
    });
    observer.observe(box);
    observer.observe(column);
    return () => observer.disconnect();
  }, []);
  const parts = useRef<PartOfThread[]>([]);
  parts.current = partsOf(conversation.items, parts.current);
  const nearness = useRef<Nearness>(null);
  nearness.current ??= new Nearness(scroller, DRAWN);
  const distance = useRef<Nearness>(null);
  distance.current ??= new Nearness(scroller, THERE);
  const steady = useSteadiness(session, scroller);
  useLayoutEffect(() => {
    if (!steady() && sticks.current) toBottom();
  });
  useEffect(() => {
    // A sent message is scrolled into view, wherever the person was reading.
    if (outgoing.length) {
      sticks.current = true;
      toBottom();
    }
  }, [outgoing.length]);

  return (
    <div class="thread-box">
      <div class="thread" ref={scroller} onScroll={scrolled} onPointerDown={pressed} onKeyDown={pressed} tabIndex={0} role="region" aria-label="Messages">
        <div class="column">
          {session.firstPosition.value > 1 && <p class="aside">Earlier messages are fetched as you scroll up.</p>}
          <div role="log" aria-live="polite" aria-relevant="additions" aria-busy={!session.loaded.value} data-position={conversation.position}>
            {stretchesOf(parts.current).map((stretch) => (
              <Stretch
                key={stretch.key}
                parts={stretch.parts}
                session={session}
                scroller={scroller}
                nearness={nearness.current!}
                distance={distance.current!}
              />
            ))}
            {outgoing.map((message) => (
              <OutgoingMessage key={message.messageId} message={message} conversation={conversation} session={session} />
            ))}
          </div>
          <Working session={session} />
        </div>
      </div>
      {!isAtBottom && (
        <button
          type="button"
          class="to-bottom"
          onClick={() => {
            sticks.current = true;
            toBottom();
          }}
        >
          <Icon name="down" /> Latest
        </button>
      )}
    </div>
  );
}

let isFetching = false;

/** Load earlier messages. */
async function older(session: OpenSession): Promise<void> {
  if (isFetching) return;
  isFetching = true;
  try {
    await session.older();
  } finally {
    isFetching = false;
  }
}

/** Most browsers keep the visible text in place when content is added above it, but not at the very top. */
const HOLDS_PLACE = CSS.supports("overflow-anchor", "auto");

/** Keeps the visible text in place when older messages are added above. Returns the function to call after that. */
function useSteadiness(session: OpenSession, scroller: { current: HTMLElement | null }): () => boolean {
  const first = session.firstPosition.value;
  const known = useRef(first);
  const fromBottom = useRef<number | null>(null);
  if (first < known.current) {
    const box = scroller.current;
    // Measured as late as possible: the person may have scrolled while they were loading.
    if (box && (box.scrollTop < 1 || !HOLDS_PLACE)) fromBottom.current = box.scrollHeight - box.scrollTop;
  }
  known.current = first;
  return () => {
    if (fromBottom.current === null || !scroller.current) return false;
    scroller.current.scrollTop = scroller.current.scrollHeight - fromBottom.current;
    fromBottom.current = null;
    return true;
  };
}

interface Around {
  session: OpenSession;
  scroller: { current: HTMLElement | null };
  nearness: Nearness;
}

/** The last measured heights of the parts of a session, by their keys. */
const heights = new WeakMap<OpenSession, Map<number, number>>();

function heightOf(session: OpenSession, part: PartOfThread): number {
  return heights.get(session)?.get(part.key) ?? part.items.length * 140;
}

/** Fractions of a pixel are kept: rounding each part would move the visible text. */
function measure(session: OpenSession, key: number, element: Element): void {
  const known = heights.get(session) ?? new Map<number, number>();
  heights.set(session, known.set(key, element.getBoundingClientRect().height));
}

/**
 * Adjacent parts. Far from the visible area they are one empty box, so that the cost of a frame does not grow with the
 * thread. For each delta only the parts of the last stretch are compared one by one.
 */
const Stretch = memo(
  function Stretch({ parts, distance, session, ...around }: { parts: PartOfThread[]; distance: Nearness } & Around) {
    const hasLast = parts.at(-1)!.isLast;
    const box = useRef<HTMLDivElement>(null);
    const shown = useRef(parts);
    shown.current = parts;
    const [isNear, setNear] = useState(hasLast);
    useEffect(() => {
      const element = box.current;
      if (!element) return;
      return distance.watch(element, (near) => {
        if (!near) [...element.children].forEach((child, index) => measure(session, shown.current[index]!.key, child));
        setNear(near);
      });
    }, []);
    const isThere = isNear || hasLast;
    const height = isThere ? 0 : parts.reduce((sum, part) => sum + heightOf(session, part), 0);
    return (
      <div ref={box} class="stretch" style={isThere ? undefined : { height: `${height}px` }}>
        {isThere && parts.map((part) => <Part key={part.key} part={part} session={session} {...around} />)}
      </div>
    );
  },
  (before, after) =>
    before.session === after.session &&
    before.parts.length === after.parts.length &&
    before.parts.every((part, index) => part === after.parts[index]),
);

/** Rendered while it is near the visible area; otherwise an empty box of its last height. */
function Part({ part, session, scroller, nearness }: { part: PartOfThread } & Around) {
  const { isLast } = part;
  const box = useRef<HTMLDivElement>(null);
  const [isNear, setNear] = useState(isLast);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    return nearness.watch(element, (near) => {
      if (!near) measure(session, part.key, element);
      setNear(near);
    });
  }, []);
  const isDrawn = isNear || isLast;
  useSteadyBottom(box, scroller, isDrawn);
  return (
    <div ref={box} class="part" style={isDrawn ? undefined : { height: `${heightOf(session, part)}px` }}>
      {isDrawn && part.items.map((item) => <ItemView key={item.key} item={item} version={item.version} session={session} />)}
    </div>
  );
}

/**
 * A part that was scrolled into from below before it was rendered gets its real height now, and the text below it, which
 * the person was reading, stays in place. Browsers would keep its invisible top in place instead, or nothing.
 */
function useSteadyBottom(part: { current: HTMLElement | null }, scroller: { current: HTMLElement | null }, isDrawn: boolean): void {
  const wasDrawn = useRef(isDrawn);
  const bottom = useRef<number | null>(null);
  if (isDrawn && !wasDrawn.current && part.current && scroller.current) {
    const at = part.current.getBoundingClientRect();
    const view = scroller.current.getBoundingClientRect();
    const isHeld = at.bottom > view.top ? at.top < view.top || isAboveDrawn(part.current, view.bottom) : !HOLDS_PLACE;
    bottom.current = isHeld ? at.bottom : null;
  }
  wasDrawn.current = isDrawn;
  useLayoutEffect(() => {
    if (bottom.current === null || !part.current || !scroller.current) return;
    scrollBy(scroller.current, part.current.getBoundingClientRect().bottom - bottom.current);
    bottom.current = null;
  }, [isDrawn]);
}

/** Browsers scroll by whole pixels: the rest is added the next time. Several parts may change at once. */
const lost = new WeakMap<Element, number>();

function scrollBy(box: Element, distance: number): void {
  const wanted = box.scrollTop + distance + (lost.get(box) ?? 0);
  box.scrollTop = wanted;
  const rest = wanted - box.scrollTop;
  lost.set(box, Math.abs(rest) < 1 ? rest : 0); // A larger rest means that the end was reached.
}

/** Whether a part below it is rendered and visible. */
function isAboveDrawn(part: Element, end: number): boolean {
  for (let next = after(part); next && next.getBoundingClientRect().top < end; next = after(next)) {
    if (next.hasChildNodes()) return true;
  }
  return false;
}

/** The next part, or the empty box of a stretch that is not mounted. */
function after(part: Element): Element | null {
  const next = part.nextElementSibling;
  if (next || !part.parentElement?.matches(".stretch")) return next;
  const stretch = part.parentElement.nextElementSibling;
  return stretch?.firstElementChild ?? stretch;
}

/** An unsent message: shown at once, until it is in the log or in the queue. */
function OutgoingMessage({
  message,
  conversation,
  session,
}: {
  message: Outgoing;
  conversation: Conversation;
  session: OpenSession;
}) {
  const isThere =
    conversation.items.some((item) => item.kind === "user" && item.messageId === message.messageId) ||
    session.queue.value.some((queued) => queued.message_id === message.messageId);
  if (isThere) return null;
  return (
    <article class="user outgoing" aria-label="Your message, on its way">
      {message.text && <div class="bubble">{message.text}</div>}
      <MessageFiles files={message.files ?? []} />
      <p class="aside" role="status">
        {message.accepted ? "Accepted" : "Sending …"}
      </p>
    </article>
  );
}
