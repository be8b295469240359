// The Node client against the executable in argv[2]: it prints what came of each step, one line of JSON for each.
import { approveAll, CopilotClient, defineTool, RuntimeConnection } from "@github/copilot-sdk";

const told = (step, value) => console.log(JSON.stringify({ step, value }));

const client = new CopilotClient({
  connection: RuntimeConnection.forStdio({ path: process.argv[2] }),
  workingDirectory: process.cwd(),
});
await client.start();
told("ping", (await client.ping("from node")).message);

const lookup = defineTool("lookup", {
  description: "Looks up a value",
  parameters: { type: "object", properties: { value: { type: "string" } }, required: ["value"] },
  handler: ({ value }) => `NODE_${value.toUpperCase()}`,
});
const session = await client.createSession({ onPermissionRequest: approveAll, tools: [lookup], streaming: true });
const deltas = [];
session.on("assistant.message_delta", (event) => deltas.push(event.data.deltaContent));

told("plain", (await session.sendAndWait({ prompt: "Say hello to node" })).data.content);
told("deltas", deltas.join(""));
told("tool", (await session.sendAndWait({ prompt: "Use lookup from node" })).data.content);
told("events", (await session.getEvents()).map((event) => event.type));
await session.disconnect();

const again = await client.resumeSession(session.sessionId, { onPermissionRequest: approveAll });
told("resumed", (await again.sendAndWait({ prompt: "Say hello to node" })).data.content);
told("stopped", await client.stop());
