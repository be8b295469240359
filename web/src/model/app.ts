/** Everything that the page knows, in signals: who one is, the list of sessions, the one that is open, what is shown. */

import { batch, computed, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { newId, Server, ServerError } from "../api/server.ts";
import type { IdentityView, Overview, SessionSettings, SessionView } from "../api/wire.ts";
import { keep, kept } from "./kept.ts";
import { OpenSession } from "./open_session.ts";
import { Outbox } from "./outbox.ts";

export type Place = { kind: "start" } | { kind: "session"; id: string } | { kind: "overview" };

export type Panel = "none" | "tasks" | "timeline";

/** A link that would sign in with another key. Who the two keys are for is null where the server did not say. */
export interface Offer {
  token: string;
  now: IdentityView | null;
  then: IdentityView | null;
}

export interface Notice {
  key: number;
  text: string;
  tone: "plain" | "error";
}

const LIST_PAGE = 50;
const LONGEST_PAGE = 200;
const LOOK_EVERY_MS = 3_000;

export class App {
  readonly token: Signal<string> = signal(kept("token", ""));
  /** The server does not know this person: a key or a token has to be given. */
  readonly mustSignIn: Signal<boolean> = signal(false);
  /** Waits for the person's word; until then nothing changes. */
  readonly offered: Signal<Offer | null> = signal<Offer | null>(null);
  readonly place: Signal<Place> = signal<Place>({ kind: "start" });
  readonly panel: Signal<Panel> = signal<Panel>("none");
  readonly listIsOpen: Signal<boolean> = signal(false);
  readonly paletteIsOpen: Signal<boolean> = signal(false);
  readonly notices: Signal<Notice[]> = signal<Notice[]>([]);

  readonly sessions: Signal<SessionView[]> = signal<SessionView[]>([]);
  readonly more: Signal<string | null> = signal<string | null>(null);
  readonly search: Signal<string> = signal("");
  readonly overview: Signal<Overview | null> = signal<Overview | null>(null);
  readonly reachable: Signal<boolean> = signal(true);

  readonly open: Signal<OpenSession | null> = signal<OpenSession | null>(null);
  readonly settings: Signal<SessionSettings | null> = signal<SessionSettings | null>(null);
  readonly outbox: Signal<Outbox | null> = signal<Outbox | null>(null);
  /** What was refused, to be put back into the box where it was written. */
  readonly givenBack: Signal<{ sessionId: string; text: string; reason: string } | null> = signal<{
    sessionId: string;
    text: string;
    reason: string;
  } | null>(null);
  /** What a new session is made with: model, directory and so on. */
  readonly newOptions: Signal<Record<string, unknown>> = signal<Record<string, unknown>>({});

  readonly current: ReadonlySignal<SessionView | null> = computed(() => {
    const id = this.open.value?.id;
    return this.sessions.value.find((session) => session.id === id) ?? null;
  });
  readonly attention: ReadonlySignal<number> = computed(() => this.overview.value?.counts.needs_attention ?? 0);

  readonly server = new Server(
    () => this.token.value,
    () => {
      this.mustSignIn.value = true;
    },
  );
  private wake: () => void = () => {};
  private noticeCount = 0;
  private lookingSince = 0;
  private listed = "";
  private heardState = "";
  private wanted = LIST_PAGE;

  start(): void {
    this.takeTokenFromLink();
    addEventListener("hashchange", () => this.followLink());
    addEventListener("storage", (event) => {
      if (event.key === "holdfast.token") this.signIn(kept("token", ""), { here: false });
    });
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.hurry();
    });
    this.followLink();
    void this.keepLooking();
  }

  // Who one is

  /** The link that the server printed ends in `#token=…`, which never reaches a server or its log. */
  private takeTokenFromLink(): void {
    const found = /^#token=([^&]+)/.exec(location.hash);
    if (!found?.[1]) return;
    history.replaceState(null, "", location.pathname);
    const token = decoded(found[1]);
    const held = this.token.value;
    if (held === "" || this.mustSignIn.value || held === token) this.signIn(token);
    else void this.offer(held, token);
  }

  /** Anybody can send a link. One with another key than the person has is asked about, unless theirs is worth nothing. */
  private async offer(held: string, token: string): Promise<void> {
    const [now, then] = await Promise.all([identityOf(held), identityOf(token)]);
    if (this.mustSignIn.value || (now === "unknown" && this.token.value === held)) this.signIn(token);
    else if (then === "unknown") this.tell("The link has a key that this server does not know. You stay signed in as before.");
    else if (this.token.value !== token) this.offered.value = { token, now: now === "unknown" ? null : now, then };
  }

  /** What the person said to the link. */
  takeOffer(isWanted: boolean): void {
    const token = this.offered.value?.token;
    this.offered.value = null;
    if (isWanted && token) {
      this.signIn(token);
      this.go({ kind: "start" });
    }
  }

  signIn(token: string, { here = true } = {}): void {
    this.token.value = token;
    if (here) keep("token", token);
    this.mustSignIn.value = false;
    this.hurry();
  }

  signOut(): void {
    keep("token", null);
    this.token.value = "";
    this.mustSignIn.value = true;
  }

  /** Whatever waits before it tries again tries now. */
  hurry(): void {
    this.wake();
    this.open.value?.hurry();
    this.outbox.value?.hurry();
    void this.look();
  }

  // Where one is

  go(place: Place): void {
    const hash = place.kind === "session" ? `#/s/${encodeURIComponent(place.id)}` : place.kind === "overview" ? "#/overview" : "#/";
    if (location.hash !== hash) location.hash = hash;
    else this.followLink();
  }

  private followLink(): void {
    if (location.hash.startsWith("#token=")) this.takeTokenFromLink();
    const found = /^#\/s\/([^/]+)/.exec(location.hash);
    this.listIsOpen.value = false;
    if (found?.[1]) void this.openSession(decoded(found[1]));
    else {
      this.closeSession();
      this.place.value = { kind: location.hash === "#/overview" ? "overview" : "start" };
    }
  }

  private async openSession(id: string): Promise<void> {
    if (this.open.value?.id === id) return;
    const session = new OpenSession(this.server, id, (opened) => this.heard(opened));
    batch(() => {
      this.closeSession();
      this.place.value = { kind: "session", id };
      this.open.value = session;
      this.outbox.value = this.newOutbox(id);
    });
    await this.follow(session);
  }

  /** Once the session is there: a new one is made when its first message is sent, which a reload may have cut short. */
  private async follow(session: OpenSession): Promise<void> {
    await this.outbox.value?.made();
    const head = await this.detail(session);
    if (head !== null && this.open.value === session) session.open(head);
  }

  /** How far the session's log reaches; null when there is none, or when it was left meanwhile. */
  private async detail(session: OpenSession): Promise<number | null> {
    for (let tries = 0; this.open.value === session; tries += 1) {
      try {
        const found = await this.server.session(session.id);
        this.settings.value = found.settings;
        this.put(found.session);
        return found.session.head;
      } catch (error) {
        if (!(error instanceof ServerError)) throw error;
        session.line.value = error.status === 404 ? "gone" : "broken";
        session.error.value = error;
        if (error.status === 404) {
          session.deleted.value = true;
          return null;
        }
        await this.pause(Math.min(8_000, 250 * 2 ** tries));
      }
    }
    return null;
  }

  /** Until it is time to try again, or somebody signed in, or the network came back. */
  private pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  private newOutbox(id: string): Outbox {
    return new Outbox(this.server, id, ({ text, error }) => {
      this.givenBack.value = { sessionId: id, text, reason: error.message };
    });
  }

  private closeSession(): void {
    this.open.value?.close();
    this.open.value = null;
    this.outbox.value = null;
    this.settings.value = null;
  }

  private heard(session: OpenSession): void {
    const known = new Set(session.queue.value.map((message) => message.message_id));
    for (const item of session.conversation.items) if (item.kind === "user") known.add(item.messageId);
    this.outbox.value?.seen(known);
    // The list is looked at when a turn starts, waits, goes on or ends, and not with every word.
    const state = `${session.id} ${session.conversation.turn?.state ?? "idle"}`;
    if (state !== this.heardState && session.loaded.value) void this.look();
    this.heardState = state;
  }

  // Sending

  /** A message to the session that is open, or to a new one. */
  send(text: string, delivery: "steer" | "enqueue" | "interrupt" = "steer", options: Record<string, unknown> = {}): void {
    const open = this.open.value;
    if (open && this.outbox.value) {
      this.outbox.value.add(text, { delivery, options });
      return;
    }
    const id = newId();
    const outbox = this.newOutbox(id);
    outbox.add(text, { creates: this.newOptions.value, options });
    const session = new OpenSession(this.server, id, (opened) => this.heard(opened));
    batch(() => {
      this.open.value = session;
      this.outbox.value = outbox;
      this.place.value = { kind: "session", id };
    });
    history.pushState(null, "", `#/s/${id}`);
    void this.follow(session).then(() => this.look());
  }

  // The list

  async look(): Promise<void> {
    if (this.mustSignIn.value) return;
    const asked = (this.lookingSince += 1);
    try {
      const q = this.search.value.trim();
      const [page, overview] = await Promise.all([
        this.server.sessions({ q, limit: Math.min(LONGEST_PAGE, this.wanted) }),
        this.server.overview(),
      ]);
      if (asked !== this.lookingSince) return;
      const pinned = page.next !== null && !q ? (await this.server.sessions({ pinned: true, limit: LIST_PAGE })).sessions : [];
      if (asked !== this.lookingSince) return;
      batch(() => {
        this.list(page, pinned, q);
        this.overview.value = overview;
        this.reachable.value = true;
      });
    } catch (error) {
      if (error instanceof ServerError && error.status === 0) this.reachable.value = false;
    }
  }

  /** The newest as they are now. Pinned ones from further back, and what was asked for beyond a page, stay in it. */
  private list(page: { sessions: SessionView[]; next: string | null }, pinned: SessionView[], q: string): void {
    const known = new Set(page.sessions.map((session) => session.id));
    if (q !== this.listed) this.wanted = LIST_PAGE;
    const isPart = q === this.listed && this.wanted > LONGEST_PAGE && page.next !== null;
    const older = isPart ? this.sessions.value.filter((session) => !known.has(session.id) && !session.pinned) : [];
    this.sessions.value = [...page.sessions, ...pinned.filter((session) => !known.has(session.id)), ...older];
    if (!isPart) this.more.value = page.next;
    this.listed = q;
  }

  async showMore(): Promise<void> {
    if (this.more.value === null) return;
    const page = await this.server.sessions({ q: this.search.value.trim(), cursor: this.more.value, limit: LIST_PAGE });
    const known = new Set(this.sessions.value.map((session) => session.id));
    this.sessions.value = [...this.sessions.value, ...page.sessions.filter((session) => !known.has(session.id))];
    this.more.value = page.next;
    this.wanted += LIST_PAGE;
  }

  put(view: SessionView): void {
    const isKnown = this.sessions.value.some((session) => session.id === view.id);
    this.sessions.value = isKnown
      ? this.sessions.value.map((session) => (session.id === view.id ? view : session))
      : [view, ...this.sessions.value];
  }

  private async keepLooking(): Promise<void> {
    for (;;) {
      if (!document.hidden || this.attention.value === 0) await this.look();
      await new Promise((resolve) => setTimeout(resolve, document.hidden ? 4 * LOOK_EVERY_MS : LOOK_EVERY_MS));
    }
  }

  // Saying something to the person

  tell(text: string, tone: Notice["tone"] = "plain"): void {
    const key = (this.noticeCount += 1);
    this.notices.value = [...this.notices.value, { key, text, tone }];
    setTimeout(() => this.dismiss(key), tone === "error" ? 10_000 : 4_000);
  }

  dismiss(key: number): void {
    this.notices.value = this.notices.value.filter((notice) => notice.key !== key);
  }

  /** Do something for the person, and say so when it can't be done. */
  async attempt<T>(work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch (error) {
      this.tell(error instanceof Error ? error.message : String(error), "error");
      return undefined;
    }
  }
}

/** Who a key is for; "unknown": the server does not know it; null: it did not say. */
async function identityOf(token: string): Promise<IdentityView | "unknown" | null> {
  try {
    return await new Server(() => token).identity();
  } catch (error) {
    return error instanceof ServerError && error.status === 401 ? "unknown" : null;
  }
}

/** A part of an address as it was meant; one that was mangled on its way is taken as it stands. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
