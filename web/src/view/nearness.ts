/**
 * Which parts of a thread are near the visible area. Visible parts are rendered at once. The others are rendered one at a
 * time, each in its own frame, the nearest first: several parts in one frame would block the page.
 */

/** The time in a frame for rendering parts that became visible. Their layout and painting are extra. */
const SLICE_MS = 3;

/** How many parts are removed in a frame, which is cheap; more than appear in one at any reading speed. */
const AWAY_AT_ONCE = 3;

type Tell = (isNear: boolean) => void;

export class Nearness {
  private observer: IntersectionObserver | null = null;
  private readonly watched = new Map<Element, Tell>();
  private readonly coming = new Set<Element>();
  private readonly going = new Set<Element>();
  private isScheduled = false;

  /** `margin` is the distance above and below the visible area that counts as near. */
  constructor(
    private readonly scroller: { current: HTMLElement | null },
    private readonly margin: string,
  ) {}

  /** Returns the function that stops it. */
  watch(element: Element, tell: Tell): () => void {
    this.observer ??= new IntersectionObserver((entries) => this.changed(entries), { root: this.scroller.current, rootMargin: this.margin });
    this.watched.set(element, tell);
    this.observer.observe(element);
    return () => {
      this.observer?.unobserve(element);
      this.watched.delete(element);
      this.coming.delete(element);
      this.going.delete(element);
    };
  }

  /** An element may have several entries: the last one is current. */
  private changed(entries: IntersectionObserverEntry[]): void {
    const now = new Map(entries.map((entry) => [entry.target, entry.isIntersecting]));
    for (const [element, isNear] of now) {
      this.going.delete(element);
      this.coming.delete(element);
      if (!isNear) this.going.add(element);
      else if (this.isSeen(element)) this.tell(element, true);
      else this.coming.add(element);
    }
    this.schedule();
  }

  private isSeen(element: Element): boolean {
    const view = this.scroller.current?.getBoundingClientRect();
    const at = element.getBoundingClientRect();
    return view !== undefined && at.bottom > view.top && at.top < view.bottom;
  }

  private tell(element: Element, isNear: boolean): void {
    this.coming.delete(element);
    this.going.delete(element);
    this.watched.get(element)?.(isNear);
  }

  /**
   * Once per frame, right after it. By then the browser has applied its scroll anchoring for that frame; rendering a
   * visible part and scrolling before that would cancel the anchoring.
   */
  private schedule(): void {
    if (this.isScheduled || this.coming.size + this.going.size === 0) return;
    this.isScheduled = true;
    requestAnimationFrame(() =>
      setTimeout(() => {
        this.isScheduled = false;
        void this.slice().then(() => this.schedule());
      }),
    );
  }

  /** Removals come first: they are measured before a rendered part changes the layout. */
  private async slice(): Promise<void> {
    const until = performance.now() + SLICE_MS;
    for (const element of [...this.going].slice(0, AWAY_AT_ONCE)) this.tell(element, false);
    for (let next = this.nearest(); next; next = this.nearest()) {
      const isSeen = this.isSeen(next);
      this.tell(next, true);
      // A part that is not visible is the last of the frame: the browser anchors what it moved in the next frame only.
      if (!isSeen) return;
      await null; // It is rendered in a microtask, which runs before this one.
      if (performance.now() > until) return;
    }
  }

  private nearest(): Element | null {
    const view = this.scroller.current?.getBoundingClientRect();
    if (!view) return null;
    let found: Element | null = null;
    let least = Infinity;
    for (const element of this.coming) {
      const at = element.getBoundingClientRect();
      const away = Math.max(0, at.top - view.bottom, view.top - at.bottom);
      if (away < least) [found, least] = [element, away];
    }
    return found;
  }
}
