// Real `ai` clients, driven from outside: a line of JSON in for each command, a line out for what came of it.
// Commands run side by side, so that one may be stopped by another. Nothing here waits for time.
import { createInterface } from "node:readline";

const libraries = { ai5: () => import("ai5"), ai6: () => import("ai6"), ai7: () => import("ai") };
const clients = new Map();

// What an application would keep: a framework's hook does the same, and draws it.
class State {
  #status = "ready";
  #error = undefined;
  #messages;
  #waiting = [];

  constructor(messages) {
    this.#messages = messages;
  }
  get status() { return this.#status; }
  set status(value) { this.#status = value; this.#changed(); }
  get error() { return this.#error; }
  set error(value) { this.#error = value; this.#changed(); }
  get messages() { return this.#messages; }
  set messages(value) { this.#messages = value; this.#changed(); }
  pushMessage = (message) => { this.messages = [...this.#messages, message]; };
  popMessage = () => { this.messages = this.#messages.slice(0, -1); };
  replaceMessage = (index, message) => {
    this.messages = this.#messages.map((found, at) => (at === index ? this.snapshot(message) : found));
  };
  snapshot = (value) => structuredClone(value);

  #changed() {
    for (const look of this.#waiting.splice(0)) look();
  }
  async until(isSo) {
    while (!isSo()) await new Promise((resolve) => this.#waiting.push(resolve));
  }
}

class Client {
  constructor(library, { id, api, token, automatic, messages = [], body }) {
    const { AbstractChat, DefaultChatTransport } = library;
    this.token = token;
    this.requests = 0;
    this.cutAfter = null;
    this.data = [];
    this.toolCalls = [];
    this.finished = [];
    this.state = new State(messages);
    const transport = new DefaultChatTransport({
      api,
      body,
      headers: () => ({ authorization: `Bearer ${this.token}` }),
      fetch: (url, options) => this.#fetch(url, options),
    });
    const whens = {
      approvals: library.lastAssistantMessageIsCompleteWithApprovalResponses,
      tools: library.lastAssistantMessageIsCompleteWithToolCalls,
    };
    const Chat = class extends AbstractChat {};
    this.chat = new Chat({
      id,
      transport,
      state: this.state,
      sendAutomaticallyWhen: automatic ? whens[automatic] : undefined,
      onData: (part) => this.data.push(part),
      onToolCall: ({ toolCall }) => { this.toolCalls.push(toolCall.toolName); },
      onFinish: ({ message, messages, ...how }) => this.finished.push(how),
    });
  }

  async #fetch(url, options) {
    this.requests += 1;
    const response = await fetch(url, options);
    const after = this.cutAfter;
    this.cutAfter = null;
    if (after === null || response.body === null) return response;
    return new Response(cut(response.body, after), { status: response.status, headers: response.headers });
  }

  look() {
    const { status, error, messages } = this.state;
    const { requests, data, toolCalls, finished } = this;
    return { status, error: error?.message ?? null, messages, requests, data, toolCalls, finished };
  }
}

// A connection that is lost after so many whole frames, and half of the next.
function cut(body, frames) {
  let left = frames;
  let text = "";
  const decoder = new TextDecoder();
  const encoder = new TextEncoder();
  return body.pipeThrough(
    new TransformStream({
      transform(bytes, controller) {
        text += decoder.decode(bytes, { stream: true });
        for (;;) {
          const end = text.indexOf("\n\n");
          if (end < 0) return;
          const frame = text.slice(0, end + 2);
          text = text.slice(end + 2);
          if (left === 0) {
            controller.enqueue(encoder.encode(frame.slice(0, frame.length / 2)));
            controller.error(new TypeError("network error"));
            return;
          }
          controller.enqueue(encoder.encode(frame));
          if (!frame.startsWith(":")) left -= 1;
        }
      },
    }),
  );
}

const textOf = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");

const commands = {
  new: async (name, { library, ...options }) => {
    clients.set(name, new Client(await libraries[library](), options));
  },
  send: (name, { text, messageId, body }) => clients.get(name).chat.sendMessage({ text, messageId }, { body }),
  go_on: (name) => clients.get(name).chat.sendMessage(),
  regenerate: (name, { messageId }) => clients.get(name).chat.regenerate({ messageId }),
  resume: (name) => clients.get(name).chat.resumeStream(),
  stop: (name) => clients.get(name).chat.stop(),
  approve: (name, { id, approved, reason }) => clients.get(name).chat.addToolApprovalResponse({ id, approved, reason }),
  output: (name, { tool, toolCallId, ...given }) => {
    const { chat } = clients.get(name);
    return (chat.addToolOutput ?? chat.addToolResult)({ tool, toolCallId, ...given });
  },
  cut: (name, { after }) => { clients.get(name).cutAfter = after; },
  token: (name, { token }) => { clients.get(name).token = token; },
  until_text: (name, { text }) => {
    const { state } = clients.get(name);
    return state.until(() => state.messages.some((message) => message.role === "assistant" && textOf(message).includes(text)));
  },
  until: (name, { status }) => {
    const { state } = clients.get(name);
    return state.until(() => state.status === status);
  },
  look: (name) => clients.get(name).look(),
};

const answer = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

createInterface({ input: process.stdin }).on("line", async (line) => {
  const { number, client, command, ...given } = JSON.parse(line);
  try {
    answer({ number, value: (await commands[command](client, given)) ?? null });
  } catch (error) {
    answer({ number, failed: `${error?.stack ?? error}` });
  }
});
