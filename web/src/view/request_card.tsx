/** Something that waits for a person: a permission, a question, or a tool that nobody runs yet. The first answer counts. */

import { useState } from "preact/hooks";
import { newId, ServerError, type Answer } from "../api/server.ts";
import type { Asked } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { Code } from "./markdown.tsx";

/** Gives an answer, once: the same id goes along when it has to be sent again. */
function useAnswer(asked: Asked, session: OpenSession): [boolean, (answer: Answer) => Promise<void>] {
  const app = useApp();
  const [isSent, setSent] = useState(false);
  const [answerId] = useState(newId);
  const give = async (answer: Answer): Promise<void> => {
    setSent(true);
    try {
      await app.server.answer(session.id, asked.requestId, { ...answer, answer_id: answerId });
    } catch (error) {
      setSent(false);
      const isSettled = error instanceof ServerError && error.status === 409;
      app.tell(isSettled ? "It was answered elsewhere." : (error as Error).message, isSettled ? "plain" : "error");
    }
  };
  return [isSent, give];
}

export function RequestCard({ asked, session }: { asked: Asked; session: OpenSession }) {
  if (asked.kind === "permission") return <Permission asked={asked} session={session} />;
  if (asked.kind === "question") return <Question asked={asked} session={session} />;
  return <ClientTool asked={asked} session={session} />;
}

function Permission({ asked, session }: { asked: Asked; session: OpenSession }) {
  const [isSent, give] = useAnswer(asked, session);
  const [isDenying, setDenying] = useState(false);
  const [reason, setReason] = useState("");
  const words: Record<string, string> = { read: "read", write: "write to", shell: "run", "custom-tool": "use" };
  const title = `May it ${words[asked.permissionKind] ?? "use"} this?`;
  const diff = typeof asked.details.diff === "string" ? asked.details.diff : "";
  return (
    <div class="request" role="group" aria-label={`${title} ${asked.subject}`}>
      <h3>{title}</h3>
      <Code text={asked.subject} language={asked.permissionKind === "shell" ? "bash" : ""} />
      {diff && <Code text={diff} language="diff" />}
      {isDenying ? (
        <form
          class="deny"
          onSubmit={(event) => {
            event.preventDefault();
            void give({ decision: "deny", feedback: reason });
          }}
        >
          <label for={`reason-${asked.requestId}`}>What should it do instead? (may be left empty)</label>
          <input
            id={`reason-${asked.requestId}`}
            value={reason}
            ref={(box) => box?.focus()}
            onInput={(event) => setReason(event.currentTarget.value)}
          />
          <div class="buttons">
            <button type="button" onClick={() => setDenying(false)}>
              Back
            </button>
            <button type="submit" class="danger" disabled={isSent}>
              Deny
            </button>
          </div>
        </form>
      ) : (
        <div class="buttons">
          <button type="button" class="primary" disabled={isSent} onClick={() => void give({ decision: "approve" })}>
            Allow once
          </button>
          <button
            type="button"
            disabled={isSent}
            title={asked.rule}
            onClick={() => void give({ decision: "approve_for_session" })}
          >
            Allow for this session
          </button>
          <button type="button" disabled={isSent} onClick={() => setDenying(true)}>
            Deny …
          </button>
        </div>
      )}
      {asked.rule && (
        <p class="aside">
          For this session means: <code>{asked.rule}</code>
        </p>
      )}
    </div>
  );
}

function Question({ asked, session }: { asked: Asked; session: OpenSession }) {
  const [isSent, give] = useAnswer(asked, session);
  const [text, setText] = useState("");
  return (
    <div class="request" role="group" aria-label={`Question: ${asked.question}`}>
      <h3>{asked.question}</h3>
      {asked.choices.length > 0 && (
        <div class="buttons">
          {asked.choices.map((choice) => (
            <button key={choice} type="button" disabled={isSent} onClick={() => void give({ answer: choice, was_freeform: false })}>
              {choice}
            </button>
          ))}
        </div>
      )}
      {asked.allowFreeform && (
        <form
          class="row"
          onSubmit={(event) => {
            event.preventDefault();
            void give({ answer: text, was_freeform: true });
          }}
        >
          <label class="hidden" for={`answer-${asked.requestId}`}>
            Your answer
          </label>
          <input
            id={`answer-${asked.requestId}`}
            value={text}
            placeholder="Your answer"
            onInput={(event) => setText(event.currentTarget.value)}
          />
          <button type="submit" class="primary" disabled={isSent || text.trim() === ""}>
            Answer
          </button>
        </form>
      )}
    </div>
  );
}

function ClientTool({ asked, session }: { asked: Asked; session: OpenSession }) {
  const [isSent, give] = useAnswer(asked, session);
  const [text, setText] = useState("");
  return (
    <div class="request" role="group" aria-label={`Waits for a client that runs ${asked.toolName}`}>
      <h3>
        This waits for a program that runs <code>{asked.toolName}</code>
      </h3>
      <p class="aside">It goes on by itself when one is there. You may also say yourself what it should have given.</p>
      <Code text={asked.arguments} language="json" />
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          void give({ content: text, success: true });
        }}
      >
        <label class="hidden" for={`result-${asked.requestId}`}>
          The result
        </label>
        <input id={`result-${asked.requestId}`} value={text} placeholder="The result" onInput={(event) => setText(event.currentTarget.value)} />
        <button type="submit" disabled={isSent}>
          Give it
        </button>
        <button type="button" disabled={isSent} onClick={() => void give({ content: "Nobody can run it.", success: false })}>
          Fail it
        </button>
      </form>
    </div>
  );
}
