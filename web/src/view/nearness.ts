/**
 * Which parts of a thread are near what can be seen. One that comes near is told so in a frame of its own, the nearest
 * first: several that are drawn in the same frame would hold up the page.
 */

/** How far above and below what can be seen is near. */
const MARGIN = "200% 0px";

type Tell = (isNear: boolean) => void;

export class Nearness {
  private observer: IntersectionObserver | null = null;
  private readonly watched = new Map<Element, Tell>();
  private readonly coming = new Set<Element>();
  private isScheduled = false;

  constructor(private readonly scroller: { current: HTMLElement | null }) {}

  /** Gives what ends it. */
  watch(element: Element, tell: Tell): () => void {
    this.observer ??= new IntersectionObserver((entries) => this.changed(entries), { root: this.scroller.current, rootMargin: MARGIN });
    this.watched.set(element, tell);
    this.observer.observe(element);
    return () => {
      this.observer?.unobserve(element);
      this.watched.delete(element);
      this.coming.delete(element);
    };
  }

  /** One element may be in it several times: the last time is how it is now. */
  private changed(entries: IntersectionObserverEntry[]): void {
    const now = new Map(entries.map((entry) => [entry.target, entry.isIntersecting]));
    for (const [element, isNear] of now) {
      if (isNear && this.isSeen(element)) {
        this.coming.delete(element);
        this.watched.get(element)?.(true);
      } else if (isNear) this.coming.add(element);
      else {
        this.coming.delete(element);
        this.watched.get(element)?.(false);
      }
    }
    this.schedule();
  }

  /** What is before one's eyes already can't wait for its frame. */
  private isSeen(element: Element): boolean {
    const view = this.scroller.current?.getBoundingClientRect();
    const at = element.getBoundingClientRect();
    return view !== undefined && at.bottom > view.top && at.top < view.bottom;
  }

  private schedule(): void {
    if (this.isScheduled || this.coming.size === 0) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      const next = this.nearest();
      if (next) {
        this.coming.delete(next);
        this.watched.get(next)?.(true);
      }
      this.schedule();
    });
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
