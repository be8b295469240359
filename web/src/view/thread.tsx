/** The conversation, from the first message to what is being said now. Parts that nobody can see are not drawn. */

import { useComputed } from "@preact/signals";
import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Conversation } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import type { Outgoing } from "../model/outbox.ts";
import { partsOf, stretchesOf, type PartOfThread } from "../model/parts.ts";
import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";
import { ItemView } from "./item_view.tsx";
import { Nearness } from "./nearness.ts";
import { Working } from "./working.tsx";

const NEAR_BOTTOM_PX = 60;
/** So many screens before the top is reached, what lies before it is fetched. */
const FETCHED_SCREENS = 8;
/** How far above and below what can be seen parts are drawn, and stretches are there. */
const DRAWN = "200% 0px";
const THERE = "600% 0px";
/** So long after something was pressed in it, a thread that grows was opened by the person. */
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
    // A panel beside it, colours that came late: the end stays in sight. But what one opens is not scrolled away.
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
    // What is sent is to be seen, wherever one was reading.
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

/** Fetch what lies before. */
async function older(session: OpenSession): Promise<void> {
  if (isFetching) return;
  isFetching = true;
  try {
    await session.older();
  } finally {
    isFetching = false;
  }
}

/** Browsers hold what one reads in its place when something comes above it, but not at the very top, and not all do. */
const HOLDS_PLACE = CSS.supports("overflow-anchor", "auto");

/** Stay where one is reading when older messages come in above. Gives what is to be called once they are there. */
function useSteadiness(session: OpenSession, scroller: { current: HTMLElement | null }): () => boolean {
  const first = session.firstPosition.value;
  const known = useRef(first);
  const fromBottom = useRef<number | null>(null);
  if (first < known.current) {
    const box = scroller.current;
    // Measured as late as can be: one may have scrolled on while they were fetched.
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

/** How high the parts of a session were when they were drawn last, by their keys. */
const heights = new WeakMap<OpenSession, Map<number, number>>();

function heightOf(session: OpenSession, part: PartOfThread): number {
  return heights.get(session)?.get(part.key) ?? part.items.length * 140;
}

/** To the fraction of a pixel: what is rounded, part by part, moves what one reads. */
function measure(session: OpenSession, key: number, element: Element): void {
  const known = heights.get(session) ?? new Map<number, number>();
  heights.set(session, known.set(key, element.getBoundingClientRect().height));
}

/**
 * Parts that stand together. Far from what can be seen they are one space, so that a frame does not cost more the longer
 * the thread is. With every word that comes in, only the parts of the last stretch are looked at one by one.
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

/** Drawn while it is near what can be seen; otherwise a space of the height that it had. */
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
 * A part that one has scrolled into from below before it was drawn gets its real height now: what stands below it, and was
 * read just now, stays where it is. Browsers would hold its top instead, which nobody saw; and some hold nothing.
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

/** Browsers scroll by whole pixels: what is lost by that is made up for the next time. Several parts may come at once. */
const lost = new WeakMap<Element, number>();

function scrollBy(box: Element, distance: number): void {
  const wanted = box.scrollTop + distance + (lost.get(box) ?? 0);
  box.scrollTop = wanted;
  const rest = wanted - box.scrollTop;
  lost.set(box, Math.abs(rest) < 1 ? rest : 0); // More than that is its end.
}

/** Something that was drawn before can be seen below it. */
function isAboveDrawn(part: Element, end: number): boolean {
  for (let next = after(part); next && next.getBoundingClientRect().top < end; next = after(next)) {
    if (next.hasChildNodes()) return true;
  }
  return false;
}

/** The next part, or the space of a stretch that is not there. */
function after(part: Element): Element | null {
  const next = part.nextElementSibling;
  if (next || !part.parentElement?.matches(".stretch")) return next;
  const stretch = part.parentElement.nextElementSibling;
  return stretch?.firstElementChild ?? stretch;
}

/** A message on its way: shown at once, until it stands in the log or in the queue. */
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
      <div class="bubble">{message.text}</div>
      <p class="aside" role="status">
        {message.accepted ? "Accepted" : "Sending …"}
      </p>
    </article>
  );
}
