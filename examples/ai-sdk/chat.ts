// A chat in the terminal with the AI SDK's own client, on a Holdfast server. Close it in the middle of an answer, or stop
// the server: started again with the same name, it shows what it missed. Tools that need approval ask for it here.
//
//   holdfast serve                                  in one terminal
//   npm install                                     here, once
//   HOLDFAST_TOKEN=... node chat.ts my-chat         the token is the one that `holdfast serve` printed
import { createInterface } from "node:readline/promises";
import { DefaultChatTransport, isToolUIPart, readUIMessageStream, type UIMessage, type UIMessageChunk } from "ai";

const url = process.env.HOLDFAST_URL ?? "http://127.0.0.1:8787";
const headers = { authorization: `Bearer ${process.env.HOLDFAST_TOKEN ?? ""}` };
const chatId = process.argv[2] ?? "example";

const transport = new DefaultChatTransport({ api: `${url}/v1/chat`, headers });
const terminal = createInterface({ input: process.stdin });
const lines = terminal[Symbol.asyncIterator]();
const out = (text: string) => process.stdout.write(text);

async function ask(prompt: string): Promise<string | null> {
  out(prompt);
  const { value, done } = await lines.next();
  return done ? null : value.trim();
}

// What of a message was drawn already: it only ever grows, also when it is told from its start once more.
let drawn = { id: "", length: 0 };

function draw(message: UIMessage): void {
  const text = message.parts
    .map((part) => {
      if (part.type === "text") return part.text;
      if (part.type === "data-interrupted") return " [interrupted; the model answers again]\n";
      if (isToolUIPart(part) && part.state === "output-available") return `\n[${part.type.slice(5)} is done]\n`;
      if (isToolUIPart(part) && part.state === "output-error") return `\n[${part.type.slice(5)} failed]\n`;
      return "";
    })
    .join("");
  if (message.id !== drawn.id) drawn = { id: message.id, length: 0 };
  out(text.slice(drawn.length));
  drawn.length = text.length;
}

// One answer to its end. A connection that is lost is taken up again: the server tells the message from its start.
async function follow(stream: ReadableStream<UIMessageChunk> | null, message?: UIMessage): Promise<UIMessage | undefined> {
  while (stream !== null) {
    try {
      for await (message of readUIMessageStream({ stream, message, terminateOnError: true })) draw(message);
      return message;
    } catch (error) {
      out(`\n[${error instanceof Error ? error.message : error}]\n`);
      if (hasEnded(message)) return message; // It was the turn that failed, not the connection.
      message = undefined;
      stream = await reconnect();
    }
  }
  return message;
}

function hasEnded(message: UIMessage | undefined): boolean {
  return (message?.metadata as { reason?: string } | undefined)?.reason !== undefined;
}

async function reconnect(): Promise<ReadableStream<UIMessageChunk> | null> {
  for (;;) {
    try {
      return await transport.reconnectToStream({ chatId });
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 1_000));
    }
  }
}

function send(message: UIMessage, messageId?: string): Promise<ReadableStream<UIMessageChunk>> {
  // The server has the conversation: only what is new needs to be sent.
  return transport.sendMessages({
    chatId,
    messages: [message],
    trigger: "submit-message",
    messageId,
    abortSignal: undefined,
  });
}

// Ask about everything that the turn waits for, and go on with the answers until it waits for nothing.
async function settle(message: UIMessage | undefined): Promise<void> {
  while (message?.parts.some((part) => isToolUIPart(part) && part.state === "approval-requested")) {
    for (const part of message.parts) {
      if (!isToolUIPart(part) || part.state !== "approval-requested") continue;
      const answer = await ask(`\n${part.type.slice(5)} ${JSON.stringify(part.input)}\nallow it? [y/n] `);
      if (answer === null) return; // It waits, for whoever comes next.
      Object.assign(part, {
        state: "approval-responded",
        approval: { ...part.approval, approved: answer.toLowerCase().startsWith("y") },
      });
    }
    message = await follow(await send(message, message.id), message);
  }
  out("\n");
}

await settle(await follow(await reconnect()));
for (let text = await ask("> "); text !== null; text = await ask("> ")) {
  if (!text) continue;
  try {
    await settle(await follow(await send({ id: crypto.randomUUID(), role: "user", parts: [{ type: "text", text }] })));
  } catch (error) {
    out(`[not sent: ${error instanceof Error ? error.message : error}]\n`);
  }
}
terminal.close();
