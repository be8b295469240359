/** One line that says what a call is about. */

import type { Call } from "../model/conversation.ts";

const TELLING = ["command", "path", "file_path", "pattern", "query", "url", "question", "task_id", "prompt", "name"];

export function summaryOf(call: Call): string {
  const given = argumentsOf(call.arguments);
  const name = TELLING.find((found) => typeof given[found] === "string");
  const value = name ? String(given[name]) : call.arguments;
  return value.replace(/\s+/g, " ").trim().slice(0, 200);
}

export function argumentsOf(text: string): Record<string, unknown> {
  try {
    const found: unknown = JSON.parse(text || "{}");
    return typeof found === "object" && found !== null ? (found as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}
