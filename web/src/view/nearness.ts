/**
 * Which parts of a thread are near what can be seen. What is before one's eyes is drawn at once. The rest is drawn one at
 * a time, each in a frame of its own, the nearest first: several parts in the same frame would hold up the page.
 */

/** So much of a frame is taken for parts that have come in sight. Their layout and painting come on top of it. */
const SLICE_MS = 3;

/** So many are taken away in a frame, which is cheap; more than come in one at any speed that can be read at. */
const AWAY_AT_ONCE = 3;

type Tell = (isNear: boolean) => void;

export class Nearness {
  private observer: IntersectionObserver | null = null;
  private readonly watched = new Map<Element, Tell>();
  private readonly coming = new Set<Element>();
  private readonly going = new Set<Element>();
  private isScheduled = false;

  /** `margin` is how far above and below what can be seen is near. */
  constructor(
    private readonly scroller: { current: HTMLElement | null },
    private readonly margin: string,
  ) {}

  /** Gives what ends it. */
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

  /** One element may be in it several times: the last time is how it is now. */
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
   * Once for each frame, right after it. Then the browser has held what one reads in its place, whatever came above it in
   * that frame; a part that is drawn before one's eyes, and scrolled for, would make it forget to.
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

  /** What goes first: it is measured before anything that is drawn changes the layout. */
  private async slice(): Promise<void> {
    const until = performance.now() + SLICE_MS;
    for (const element of [...this.going].slice(0, AWAY_AT_ONCE)) this.tell(element, false);
    for (let next = this.nearest(); next; next = this.nearest()) {
      const isSeen = this.isSeen(next);
      this.tell(next, true);
      // One that is not seen is the last: until the next frame the browser does not hold what it has moved.
      if (!isSeen) return;
      await null; // It is drawn in a microtask, which comes before this one.
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
