/** The state of the page in signals: the signed-in person, the list of sessions, the open session, the open panels. */

import { batch, computed, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { newId, Server, ServerError } from "../api/server.ts";
import type { ContextView, IdentityView, MessageFile, Overview, SessionSettings, SessionView } from "../api/wire.ts";
import { keep, kept } from "./kept.ts";
import { OpenSession } from "./open_session.ts";
import { Outbox } from "./outbox.ts";

export type Place = { kind: "start" } | { kind: "session"; id: string } | { kind: "overview" } | { kind: "usage" };

export type Panel = "none" | "tasks" | "timeline";

/** A link that would sign in with another key. The owner of a key is null if the server did not name it. */
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

/** A message that was not sent, for the box. */
export interface GivenBack {
  sessionId: string;
  text: string;
  files: MessageFile[];
  reason: string;
}

export class App {
  readonly token: Signal<string> = signal(kept("token", ""));
  /** No valid key is stored: the person has to enter a key or a token. */
  readonly mustSignIn: Signal<boolean> = signal(false);
  /** Set while the person is asked about a link; nothing changes until they decide. */
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
  /** The context of the open session, when a turn or a compaction ended last. */
  readonly context: Signal<ContextView | null> = signal<ContextView | null>(null);
  readonly outbox: Signal<Outbox | null> = signal<Outbox | null>(null);
  /** A refused message, to be put back into the box where it was written. */
  readonly givenBack: Signal<GivenBack | null> = signal<GivenBack | null>(null);
  /** The options of a new session: model, directory and so on. */
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
  private heardRest = "";
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

  // Signing in

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

  /** A link can come from a stranger: one with another key than the stored one is confirmed first, unless that is invalid. */
  private async offer(held: string, token: string): Promise<void> {
    const [now, then] = await Promise.all([identityOf(held), identityOf(token)]);
    if (this.mustSignIn.value || (now === "unknown" && this.token.value === held)) this.signIn(token);
    else if (then === "unknown") this.tell("The link has a key that this server does not know. You stay signed in.");
    else if (this.token.value !== token) this.offered.value = { token, now: now === "unknown" ? null : now, then };
  }

  /** The person's decision about the link. */
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

  /** Retry everything now that waits for its next retry. */
  hurry(): void {
    this.wake();
    this.open.value?.hurry();
    this.outbox.value?.hurry();
    void this.look();
  }

  // Navigation

  go(place: Place): void {
    const hash = place.kind === "session" ? `#/s/${encodeURIComponent(place.id)}` : place.kind === "start" ? "#/" : `#/${place.kind}`;
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
      const kind = (["overview", "usage"] as const).find((name) => location.hash === `#/${name}`);
      this.place.value = { kind: kind ?? "start" };
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

  /** Waits until the session exists: its first message creates it, and a reload may have interrupted that. */
  private async follow(session: OpenSession): Promise<void> {
    await this.outbox.value?.made();
    const head = await this.detail(session);
    if (head !== null && this.open.value === session) session.open(head);
  }

  /** The head of the session's log; null if the session does not exist or is no longer open. */
  private async detail(session: OpenSession): Promise<number | null> {
    for (let tries = 0; this.open.value === session; tries += 1) {
      try {
        const found = await this.server.session(session.id);
        this.settings.value = found.settings;
        this.context.value = found.context ?? null;
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

  /** Waits until the next retry, a sign-in or the return of the network. */
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
    return new Outbox(this.server, id, ({ text, files, error }) => {
      this.givenBack.value = { sessionId: id, text, files, reason: error.message };
    });
  }

  private closeSession(): void {
    this.open.value?.close();
    this.open.value = null;
    this.outbox.value = null;
    this.settings.value = null;
    this.context.value = null;
  }

  private heard(session: OpenSession): void {
    const known = new Set(session.queue.value.map((message) => message.message_id));
    for (const item of session.conversation.items) if (item.kind === "user") known.add(item.messageId);
    this.outbox.value?.seen(known);
    // The list is refreshed when a turn starts, waits, continues or ends, and not for every delta.
    const state = `${session.id} ${session.conversation.turn?.state ?? "idle"}`;
    if (state !== this.heardState && session.loaded.value) void this.look();
    this.heardState = state;
    const { turn, compaction } = session.conversation;
    const rests = `${session.id} ${turn === null} ${compaction === null}`;
    if (rests !== this.heardRest && session.loaded.value && (turn === null || compaction === null)) void this.measure(session);
    this.heardRest = rests;
  }

  /** Ask how full the context is. It is no loss if that fails: the next end of a turn asks again. */
  private async measure(session: OpenSession): Promise<void> {
    try {
      const found = await this.server.session(session.id);
      if (this.open.value === session) this.context.value = found.context ?? null;
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
    }
  }

  // The context

  /** Have the older part of the open session summarised. Returns whether that was accepted. */
  async compact(id: string, instructions = ""): Promise<boolean> {
    const asked = await this.attempt(() => this.server.compact(id, newId(), instructions));
    return asked !== undefined;
  }

  // Sending

  /** A message to the session that is open, or to a new one. */
  send(
    text: string,
    delivery: "steer" | "enqueue" | "interrupt" = "steer",
    options: Record<string, unknown> = {},
    files: MessageFile[] = [],
  ): void {
    const open = this.open.value;
    if (open && this.outbox.value) {
      this.outbox.value.add(text, { delivery, options, files });
      return;
    }
    const id = newId();
    const outbox = this.newOutbox(id);
    outbox.add(text, { creates: this.newOptions.value, options, files });
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
      // The server searches what is indexed, and each search indexes more.
      if ((page.unsearched ?? 0) > 0) void this.look();
    } catch (error) {
      if (error instanceof ServerError && error.status === 0) this.reachable.value = false;
    }
  }

  /** Refreshes the newest sessions. Older pinned ones, and further pages that were loaded, stay in the list. */
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

  // Notices

  tell(text: string, tone: Notice["tone"] = "plain"): void {
    const key = (this.noticeCount += 1);
    this.notices.value = [...this.notices.value, { key, text, tone }];
    setTimeout(() => this.dismiss(key), tone === "error" ? 10_000 : 4_000);
  }

  dismiss(key: number): void {
    this.notices.value = this.notices.value.filter((notice) => notice.key !== key);
  }

  /** Run an action of the person, and show a notice if it fails. */
  async attempt<T>(work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch (error) {
      this.tell(error instanceof Error ? error.message : String(error), "error");
      return undefined;
    }
  }
}

/** The owner of a key; "unknown": the key is not valid; null: the server did not answer. */
async function identityOf(token: string): Promise<IdentityView | "unknown" | null> {
  try {
    return await new Server(() => token).identity();
  } catch (error) {
    return error instanceof ServerError && error.status === 401 ? "unknown" : null;
  }
}

/** A decoded part of an address; a part that can't be decoded is returned unchanged. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
