/** All requests to the server. Each carries the person's key, and every refusal becomes a `ServerError`. */

import type {
  Answer,
  BudgetView,
  Compacted,
  ErrorBody,
  EventPage,
  FileView,
  IdentityView,
  MessageFile,
  Models,
  Offered,
  Output,
  OwnerList,
  Overview,
  Permission,
  PermissionList,
  Requests,
  RequestView,
  Seen,
  SessionDetail,
  SessionList,
  SessionView,
  Stopped,
  Tasks,
  TaskView,
  UsageView,
} from "./wire.ts";

/** A refusal, with the server's stable code and its sentence for people; or no answer at all (`unreachable`). */
export class ServerError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly retryAfter: number | null = null,
  ) {
    super(message);
  }

  /** The same request may succeed later: the server did not judge its content. */
  get isPassing(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** How long a request for a summary waits to be refused. */
const REFUSAL_SECONDS = 2;

export interface NewMessage {
  text: string;
  messageId: string;
  delivery?: "steer" | "enqueue" | "interrupt";
  files?: MessageFile[];
  options?: Record<string, unknown>;
}

export class Server {
  constructor(
    readonly token: () => string,
    private readonly whenUnknown: () => void = () => {},
  ) {}

  async request(method: string, path: string, body?: unknown, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    const token = this.token();
    if (token) headers.set("authorization", `Bearer ${token}`);
    if (body !== undefined) headers.set("content-type", "application/json");
    if (!headers.has("accept")) headers.set("accept", "application/json");
    let response: Response;
    try {
      response = await fetch(path, {
        ...init,
        method,
        headers,
        credentials: "omit",
        cache: "no-store",
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
    } catch (error) {
      if (init.signal?.aborted) throw error;
      throw new ServerError(0, "unreachable", "The server can't be reached.");
    }
    if (!response.ok) {
      const refused = await refusalIn(response);
      // Not if another key was given meanwhile: the response says nothing about that one.
      if (response.status === 401 && token === this.token()) this.whenUnknown();
      throw refused;
    }
    return response;
  }

  private async json<T>(method: string, path: string, body?: unknown, init?: RequestInit): Promise<T> {
    const response = await this.request(method, path, body, init);
    return (response.status === 204 ? undefined : await response.json()) as T;
  }

  // Sessions

  sessions(query: { q?: string; cursor?: string; limit?: number; pinned?: boolean }): Promise<SessionList> {
    const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
    const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
    return this.json("GET", `/v1/sessions?${search}`);
  }

  session(id: string): Promise<SessionDetail> {
    return this.json("GET", `${at(id)}?limit=1&usage=true`);
  }

  create(options: Record<string, unknown>): Promise<SessionView> {
    return this.json("POST", "/v1/sessions", options);
  }

  change(id: string, changes: Record<string, unknown>): Promise<SessionView> {
    return this.json("PATCH", at(id), changes);
  }

  /** Record the position up to which the person has seen the session. It never decreases. */
  see(id: string, position: number): Promise<Seen> {
    return this.json("POST", `${at(id)}/seen`, { position });
  }

  remove(id: string): Promise<void> {
    return this.json("DELETE", at(id));
  }

  fork(id: string, position?: number): Promise<SessionView> {
    return this.json("POST", `${at(id)}/fork${position === undefined ? "" : `?at=${position}`}`, {});
  }

  exported(id: string): Promise<Response> {
    return this.request("GET", `${at(id)}/export`);
  }

  imported(document: unknown): Promise<SessionView> {
    return this.json("POST", "/v1/sessions/import", document);
  }

  overview(): Promise<Overview> {
    return this.json("GET", "/v1/overview");
  }

  identity(): Promise<IdentityView> {
    return this.json("GET", "/v1/identity");
  }

  async models(): Promise<Offered[]> {
    return (await this.json<Models>("GET", "/v1/models")).models;
  }

  events(id: string, after: number, limit: number): Promise<EventPage> {
    return this.json("GET", `${at(id)}/events?after=${after}&limit=${limit}`);
  }

  // Messages

  /** Resolves once the message is on the server's disk. The same id again is the same message. */
  async send(id: string, message: NewMessage): Promise<void> {
    await this.accepted(id, {
      text: message.text,
      message_id: message.messageId,
      ...(message.delivery ? { delivery: message.delivery } : {}),
      ...(message.files?.length ? { files: message.files.map((file) => file.id) } : {}),
      ...message.options,
    });
  }

  // Files

  /** Resolves once the file is on the server's disk. The same id again is the same file. */
  async upload(file: Blob, name: string, id: string): Promise<FileView> {
    const query = new URLSearchParams({ name, id });
    const headers = { "content-type": file.type || "application/octet-stream" };
    return (await this.request("POST", `/v1/files?${query}`, undefined, { headers, body: file })).json();
  }

  async content(id: string): Promise<Blob> {
    const init = { headers: { accept: "*/*" } };
    return (await this.request("GET", `/v1/files/${encodeURIComponent(id)}/content`, undefined, init)).blob();
  }

  /** Replace a message: everything after it is taken back. Its files stay. */
  edit(id: string, messageId: string, text: string, files: MessageFile[] = []): Promise<void> {
    const kept = files.map((file) => ({
      type: "file",
      url: `/v1/files/${encodeURIComponent(file.id)}/content`,
      mediaType: file.media_type,
      filename: file.name,
    }));
    const message = { id: messageId, role: "user", parts: [{ type: "text", text }, ...kept] };
    return this.accepted(id, { messages: [message], trigger: "submit-message", messageId });
  }

  /** Have a message answered again; the answer of that turn is taken back. */
  regenerate(id: string, messageId: string, turnId: string): Promise<void> {
    const message = { id: messageId, role: "user", parts: [] };
    return this.accepted(id, { messages: [message], trigger: "regenerate-message", messageId: turnId });
  }

  /** The answer is the turn's stream, which this page does not need: it reads the session's own. */
  private async accepted(id: string, body: unknown): Promise<void> {
    const response = await this.request("POST", `${at(id)}/stream`, body);
    await response.body?.cancel();
  }

  /**
   * Stop the turn. Queued messages are returned, or kept to start the next turn at once. With a `turnId`, nothing is
   * stopped or returned if that turn has ended.
   */
  stop(
    id: string,
    stopId: string,
    { keepQueued = false, turnId }: { keepQueued?: boolean; turnId?: string | undefined } = {},
  ): Promise<Stopped> {
    return this.json("POST", `${at(id)}/cancel`, { stop_id: stopId, keep_queued: keepQueued, turn_id: turnId });
  }

  editQueued(id: string, messageId: string, text: string): Promise<unknown> {
    return this.json("PATCH", `${at(id)}/queue/${encodeURIComponent(messageId)}`, { text });
  }

  removeQueued(id: string, messageId: string): Promise<void> {
    return this.json("DELETE", `${at(id)}/queue/${encodeURIComponent(messageId)}`);
  }

  reorderQueue(id: string, messageIds: string[]): Promise<unknown> {
    return this.json("PATCH", `${at(id)}/queue`, { message_ids: messageIds });
  }

  // The context

  /** Summarise the older part of the conversation for the model. Waits for a refusal, not for the summary. */
  compact(id: string, compactionId: string, instructions = ""): Promise<Compacted> {
    return this.json("POST", `${at(id)}/compact`, { compaction_id: compactionId, instructions, wait: REFUSAL_SECONDS });
  }

  /** Give up the summary that is being made. */
  cancelCompaction(id: string): Promise<unknown> {
    return this.json("DELETE", `${at(id)}/compact`);
  }

  /** Keep a message word for word, whatever is summarised; or no longer. */
  pin(id: string, messageId: string, isPinned: boolean): Promise<void> {
    return this.json(isPinned ? "PUT" : "DELETE", `${at(id)}/messages/${encodeURIComponent(messageId)}/pin`);
  }

  // Requests and tasks

  async requests(id: string): Promise<RequestView[]> {
    return (await this.json<Requests>("GET", `${at(id)}/requests`)).requests;
  }

  /** Go on after a turn that ended with an error. */
  goOn(id: string): Promise<unknown> {
    return this.json("POST", `${at(id)}/continue`, {});
  }

  answer(id: string, requestId: string, answer: Answer): Promise<unknown> {
    return this.json("POST", `${at(id)}/requests/${encodeURIComponent(requestId)}`, answer);
  }

  async permissions(): Promise<Permission[]> {
    return (await this.json<PermissionList>("GET", "/v1/permissions")).permissions;
  }

  /** The permissions of a session: the calls that it makes without asking. */
  async permissionsOf(id: string): Promise<Permission[]> {
    return (await this.json<PermissionList>("GET", `${at(id)}/permissions`)).permissions;
  }

  /** Revoke a rule in its session, directory or everywhere. */
  revoke(permission: Permission): Promise<unknown> {
    const place = permission.session_id === null ? "/v1" : at(permission.session_id);
    return this.json("DELETE", `${place}/permissions/${encodeURIComponent(permission.id)}`);
  }

  // Budgets and usage

  budget(): Promise<BudgetView> {
    return this.json("GET", "/v1/budget");
  }

  resetBudget(): Promise<BudgetView> {
    return this.json("POST", "/v1/budget/reset", {});
  }

  /** For admins: the last 30 days. */
  usage(group: UsageView["group"]): Promise<UsageView> {
    return this.json("GET", `/v1/usage?group=${group}`);
  }

  /** For admins: who has used so much of a limit. */
  owners(near: number): Promise<OwnerList> {
    return this.json("GET", `/v1/owners?near=${near}`);
  }

  async tasks(id: string): Promise<TaskView[]> {
    return (await this.json<Tasks>("GET", `${at(id)}/tasks`)).tasks;
  }

  taskOutput(id: string, taskId: string, offset: number): Promise<Output> {
    return this.json("GET", `${at(id)}/tasks/${encodeURIComponent(taskId)}/output?offset=${offset}`);
  }

  /** Move the command that the turn waits for to the background. */
  toBackground(id: string, taskId: string): Promise<unknown> {
    return this.json("POST", `${at(id)}/tasks/${encodeURIComponent(taskId)}/background`, {});
  }

  kill(id: string, taskId: string): Promise<unknown> {
    return this.json("DELETE", `${at(id)}/tasks/${encodeURIComponent(taskId)}`);
  }
}

export function at(id: string): string {
  return `/v1/sessions/${encodeURIComponent(id)}`;
}

async function refusalIn(response: Response): Promise<ServerError> {
  try {
    const { error } = (await response.json()) as ErrorBody;
    return new ServerError(response.status, error.code, error.message, error.retry_after ?? null);
  } catch {
    return new ServerError(response.status, "unexpected", `The server answered ${response.status}.`);
  }
}

export function newId(): string {
  return crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
