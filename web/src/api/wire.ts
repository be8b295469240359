/** What the server says, as it says it. Events of the log are in camel case, everything else is in snake case. */

export type Status = "idle" | "queued" | "running" | "waiting";

export interface SessionView {
  id: string;
  title: string;
  status: Status;
  turn_id: string | null;
  pending_requests: number;
  waiting_messages: number;
  head: number;
  created_at: number;
  updated_at: number;
  pinned?: boolean;
  unread?: boolean;
  metadata?: Record<string, string>;
}

/** A model that a session, or a message, may name. */
export interface ModelView {
  name: string;
  is_default: boolean;
}

export interface SessionSettings {
  model: string | null;
  system_message: string | null;
  working_directory: string | null;
  tools: string[] | null;
  client_tools: string[];
  allow: string[];
  dry_run: boolean;
  mode: string;
  thinking: number | null;
}

export interface SessionDetail {
  session: SessionView;
  settings: SessionSettings;
  cursor: string;
}

export interface QueuedView {
  message_id: string;
  text: string;
  delivery: string;
  accepted_at: number;
}

export interface TaskView {
  id: string;
  command: string;
  description: string;
  status: string;
  foreground: boolean;
  exit_code: number | null;
  detail: string;
  started_at: number;
  ended_at: number | null;
  /** Until its end, or until it was asked for. */
  duration_ms: number;
  tool_call_id: string;
}

export interface TaskOutput {
  offset: number;
  text: string;
  next_offset: number;
}

export interface RequestView {
  id: string;
  kind: "permission" | "client_tool" | "question";
  title: string;
  turn_id: string;
  tool_call_id: string;
  opened_at: number;
  details: Record<string, unknown>;
}

/** A rule that holds until it is taken back. */
export interface PermissionView {
  id: string;
  rule: string;
  scope: "session" | "directory" | "everywhere";
  directory: string | null;
  session_id: string | null;
  origins: { granted_by: string; granted_at: number | null; session_id: string | null }[];
}

/** Who the server takes the page's person for. */
export interface IdentityView {
  owner: string;
  role: string;
  name: string;
  key_id: string;
}

export interface Overview {
  counts: { needs_attention: number; running: number; queued: number; finished_lately: number; idle: number };
  items: SessionView[];
}

/** A piece of an answer, shown once it is on disk. `offset` is in bytes of UTF-8, within its block. */
export interface Delta {
  message_id: string;
  block: number;
  kind: "text" | "reasoning" | "tool_call";
  offset: number;
  text: string;
  tool_call_id: string;
  name: string;
}

/** What a running tool says; not kept. */
export interface Progress {
  tool_call_id: string;
  text: string;
}

/** An event of the log. `data` has other fields for each type, and leaves out those that have their default. */
export interface LogEvent {
  position: number;
  id: string;
  time: number;
  type: string;
  version: number;
  data: Record<string, any>;
}

export interface EventPage {
  events: LogEvent[];
  cursor: string;
}
