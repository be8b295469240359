/** The files of the message that is being written. Each is uploaded at once, under an id of its own; what is ready is kept
 * in this browser with the draft. */

import { signal, type Signal } from "@preact/signals";
import { newId, ServerError, type Server } from "../api/server.ts";
import type { MessageFile } from "../api/wire.ts";
import { keep, kept } from "./kept.ts";

export interface Attached extends MessageFile {
  state: "uploading" | "ready" | "failed";
  /** Why it failed. */
  problem: string;
}

/** As many as the server takes with one message. */
const MOST = 20;

export class AttachedFiles {
  readonly all: Signal<Attached[]>;

  constructor(
    private readonly server: Server,
    private readonly name: string,
  ) {
    const ready = kept<MessageFile[]>(this.key, []);
    this.all = signal(ready.map((file) => ({ ...file, state: "ready", problem: "" })));
  }

  private get key(): string {
    return `files.${this.name}`;
  }

  get ready(): MessageFile[] {
    return this.all.value
      .filter((file) => file.state === "ready")
      .map(({ id, name, media_type, size }) => ({ id, name, media_type, size }));
  }

  get isUploading(): boolean {
    return this.all.value.some((file) => file.state === "uploading");
  }

  /** Uploads files. A sentence is returned if some are too many. */
  add(files: Iterable<File>): string {
    const wanted = [...files];
    const room = MOST - this.all.value.length;
    for (const file of wanted.slice(0, room)) void this.upload(file);
    return wanted.length > room ? `A message has at most ${MOST} files.` : "";
  }

  /** Files that come back with their message. */
  giveBack(files: MessageFile[]): void {
    const known = new Set(this.all.value.map((file) => file.id));
    const back = files.filter((file) => !known.has(file.id));
    this.set([...back.map((file) => ({ ...file, state: "ready" as const, problem: "" })), ...this.all.value]);
  }

  remove(id: string): void {
    this.set(this.all.value.filter((file) => file.id !== id));
  }

  clear(): void {
    this.set([]);
  }

  private set(files: Attached[]): void {
    this.all.value = files;
    keep(this.key, this.ready.length ? this.ready : null);
  }

  private change(id: string, changes: Partial<Attached>): void {
    this.set(this.all.value.map((file) => (file.id === id ? { ...file, ...changes } : file)));
  }

  private async upload(file: File): Promise<void> {
    const id = newId();
    const name = file.name || "pasted";
    this.set([...this.all.value, { id, name, media_type: file.type, size: file.size, state: "uploading", problem: "" }]);
    try {
      const stored = await this.server.upload(file, name, id);
      this.change(id, { name: stored.name, media_type: stored.media_type, state: "ready" });
    } catch (error) {
      const problem = error instanceof ServerError ? error.message : String(error);
      this.change(id, { state: "failed", problem });
    }
  }
}
