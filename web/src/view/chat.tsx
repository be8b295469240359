/** The open session: its conversation, its open requests, and the box for messages. */

import { useApp } from "./context.ts";
import { ChatHeader } from "./chat_header.tsx";
import { Composer } from "./composer.tsx";
import { ConnectionLine } from "./connection_line.tsx";
import { StartPage } from "./start_page.tsx";
import { Thread } from "./thread.tsx";

export function Chat() {
  const app = useApp();
  const session = app.open.value;
  if (session?.deleted.value) {
    return (
      <section class="chat">
        <ChatHeader session={null} />
        <div class="empty">
          <h1>Session not found</h1>
          <p>It was deleted, it never existed, or it belongs to another owner.</p>
          <button type="button" class="primary" onClick={() => app.go({ kind: "start" })}>
            Start a new one
          </button>
        </div>
      </section>
    );
  }
  return (
    <section class="chat" aria-label={session ? "Conversation" : "New conversation"}>
      <ChatHeader session={session} />
      {session ? <Thread key={session.id} session={session} /> : <StartPage />}
      <div class="bottom">
        <ConnectionLine session={session} />
        <Composer key={session?.id ?? "new"} session={session} />
      </div>
    </section>
  );
}
