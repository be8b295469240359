/** Summaries of tool calls in one line, also while their arguments are still streaming, and however long they are. */

import type { Asked, Call } from "../model/conversation.ts";
import { visible, visibleLine } from "./escapes.ts";

const TELLING = ["command", "path", "file_path", "pattern", "query", "url", "question", "task_id", "prompt", "name"];

/** The beginning of the arguments is enough for a line. */
const LOOKED_AT = 4_000;
const LONGEST_LINE = 200;

export function summaryOf(call: Pick<Call, "arguments">): string {
  const beginning = call.arguments.slice(0, LOOKED_AT);
  const value = TELLING.map((name) => stringIn(beginning, name)).find((found) => found !== null) ?? beginning;
  return visible(value).replace(/\s+/g, " ").trim().slice(0, LONGEST_LINE);
}

/** The string value of a name in incomplete JSON, as far as it has arrived. */
function stringIn(json: string, name: string): string | null {
  const found = new RegExp(`[{,]\\s*"${name}"\\s*:\\s*"((?:[^"\\\\]|\\\\.)*)`).exec(json);
  if (!found) return null;
  const raw = found[1]!.replace(/\\(u[\da-f]{0,3})?$/i, "");
  try {
    return JSON.parse(`"${raw}"`) as string;
  } catch {
    return raw;
  }
}

/** Indented JSON. Text that is not JSON, or too long, is returned unchanged. */
export function pretty(text: string): string {
  if (text.length > 200_000) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** The effect of a permission for more than one call, as the end of a sentence that begins with "it may". */
export function meaningOf(asked: Pick<Asked, "rule" | "permissionKind" | "toolName">): string {
  const { rule, permissionKind: kind } = asked;
  if (kind === "shell" && rule.startsWith("shell(")) return "run this very command";
  if (kind === "custom-tool") return `use ${visibleLine(asked.toolName)}`;
  if (kind === "read" || kind === "write") {
    const verb = kind === "read" ? "read" : "write";
    if (rule === kind) return `${verb} any file in the working directory`;
    if (rule.startsWith(`${kind}(`)) return kind === "read" ? "read this very path" : "write to this very path";
  }
  return `do what the rule ${visibleLine(rule)} covers`;
}

/** The longest subject that the question itself shows. */
const SHORT = 160;

export function fitsTheQuestion({ permissionKind, subject }: Pick<Asked, "permissionKind" | "subject">): boolean {
  return permissionKind !== "shell" && visible(subject).length <= SHORT && !subject.includes("\n");
}

/** Everything beside the question that a person must read before they allow it. `given`: the arguments of the call as JSON. */
export function partsOf(
  asked: Pick<Asked, "permissionKind" | "subject" | "details">,
  given: string,
): { text: string; language: string }[] {
  const { permissionKind: kind, subject } = asked;
  const diff = typeof asked.details.diff === "string" ? asked.details.diff : "";
  const parts = fitsTheQuestion(asked) ? [] : [{ text: subject, language: kind === "shell" ? "bash" : "" }];
  if (diff) parts.push({ text: diff, language: "diff" });
  const isTold = kind === "shell" || kind === "read" || (kind === "write" && diff !== "" && isWhole(diff));
  if (!isTold && given !== "" && given !== "{}") parts.push({ text: pretty(given), language: "json" });
  return parts;
}

/** The server shortens a very long diff, or omits it, with a line like this. No line of a diff begins like it. */
function isWhole(diff: string): boolean {
  return !diff.startsWith("(too much to be shown: ") && !diff.endsWith("\n(… and more)\n");
}

/** How a request was answered, and by whom; on a local server the name is left out. */
export function outcomeOf(asked: Pick<Asked, "kind" | "outcome" | "answeredBy" | "feedback">): string {
  const by = asked.answeredBy && asked.answeredBy !== "local" ? ` by ${visibleLine(asked.answeredBy)}` : "";
  const said = asked.feedback ? `: “${visible(asked.feedback)}”` : "";
  if (asked.kind === "question") return asked.outcome === "cancelled" ? "Not answered" : `Answered${by}${said}`;
  if (asked.kind === "client_tool") return asked.outcome === "cancelled" ? "No client ran it" : by && `Its result was given${by}`;
  if (asked.outcome === "approved") return `Allowed once${by}${said}`;
  if (asked.outcome === "approved-for-session") return `Allowed from now on${by}${said}`;
  if (asked.outcome === "denied-interactively-by-user") return `Denied${by}${said}`;
  return asked.outcome.startsWith("denied") ? `Denied: no person could be asked${said}` : "Not answered";
}

/** The first characters of a text, without splitting one. */
export function beginningOf(text: string, limit: number): string {
  if (text.length <= limit) return text;
  const isHalf = (text.charCodeAt(limit - 1) & 0xfc00) === 0xd800;
  return text.slice(0, isHalf ? limit - 1 : limit);
}
