/** An open request: a permission, a question, or a call of a client tool without a client. The first answer counts. */

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { newId, ServerError } from "../api/server.ts";
import type { Answer } from "../api/wire.ts";
import type { Asked } from "../model/conversation.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";
import { visible, visibleLine } from "./escapes.ts";
import { isShort, LongCode, WholeCode } from "./long_code.tsx";
import { fitsTheQuestion, meaningOf, partsOf, pretty } from "./tool_words.ts";

interface Props {
  asked: Asked;
  session: OpenSession;
  /** The arguments of the call as JSON. */
  given: string;
}

type Give = (answer: Answer) => Promise<void>;

const TRIES = 5;
/** Keys are ignored right after the card took the focus by itself: they were meant for something else. */
const DEAF_MS = 700;

/** Sends an answer; a retry has the same id, so that it counts once. */
function useAnswer(asked: Asked, session: OpenSession): [boolean, Give] {
  const app = useApp();
  const [isSent, setSent] = useState(false);
  const [answerId] = useState(newId);
  const give = async (answer: Answer): Promise<void> => {
    setSent(true);
    for (let tries = 1; ; tries += 1) {
      try {
        await app.server.answer(session.id, asked.requestId, { ...answer, answer_id: answerId });
        return;
      } catch (error) {
        const refused = error instanceof ServerError ? error : new ServerError(0, "failed", String(error));
        if (refused.isPassing && tries < TRIES) {
          await new Promise((resolve) => setTimeout(resolve, 300 * 2 ** tries));
          continue;
        }
        setSent(false);
        if (refused.status === 409) app.tell("It was answered elsewhere.");
        else app.tell(refused.message, "error");
        return;
      }
    }
  };
  return [isSent, give];
}

export function RequestCard({ asked, session, given }: Props) {
  if (asked.kind === "permission") return <Permission asked={asked} session={session} given={given} />;
  if (asked.kind === "question") return <Question asked={asked} session={session} />;
  return <ClientTool asked={asked} session={session} />;
}

/** The frame of a request. It takes the focus when it appears, unless the focus is in a text field. */
function Card({
  asked,
  title,
  keys = () => false,
  children,
}: {
  asked: Asked;
  title: ComponentChildren;
  keys?: (key: string) => boolean;
  children: ComponentChildren;
}) {
  const box = useRef<HTMLDivElement>(null);
  const deafUntil = useRef(0);
  useEffect(() => {
    const isMeant = location.hash.endsWith(`/${encodeURIComponent(asked.requestId)}`);
    if (!isMeant && !isFree(document.activeElement)) return;
    deafUntil.current = performance.now() + DEAF_MS;
    box.current?.focus({ preventScroll: true });
    box.current?.scrollIntoView({ block: "nearest" });
  }, []);
  const hasFocus = useRef(false);
  useEffect(
    () => () => {
      // The answered card disappears: the focus moves to the next one, or to the box.
      if (hasFocus.current) setTimeout(() => isFree(document.activeElement) && goOn());
    },
    [],
  );
  const pressed = (event: KeyboardEvent): void => {
    const isWriting = (event.target as HTMLElement).matches("input, textarea");
    if (isWriting || event.ctrlKey || event.metaKey || event.altKey || performance.now() < deafUntil.current) return;
    if (!keys(event.key.toLowerCase())) return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div
      class="request"
      role="group"
      tabIndex={-1}
      ref={box}
      aria-labelledby={`asked-${asked.requestId}`}
      data-request={asked.requestId}
      onKeyDown={pressed}
      onFocusIn={() => (hasFocus.current = true)}
      onFocusOut={(event) => (hasFocus.current = event.relatedTarget === null)}
    >
      <h3 id={`asked-${asked.requestId}`}>{title}</h3>
      {children}
    </div>
  );
}

function isFree(active: Element | null): boolean {
  if (document.querySelector("dialog[open]")) return false;
  return active === null || active === document.body || active.matches(".thread");
}

function goOn(): void {
  const next = document.querySelector<HTMLElement>(".request");
  if (next) next.focus();
  else if (matchMedia("(pointer: fine)").matches) document.getElementById("composer")?.focus();
}

const VERBS: Record<string, string> = { read: "read", write: "write to", shell: "run", "custom-tool": "use" };

/** Allowing is disabled until the whole text was shown. */
function Permission({ asked, session, given }: Props) {
  const [isSent, give] = useAnswer(asked, session);
  const [step, setStep] = useState<"choose" | "deny" | "always">("choose");
  const { warning, intention, canOfferSessionApproval } = asked.details;
  const parts = useMemo(() => partsOf(asked, given), [asked, given]);
  const [shown, setShown] = useState<ReadonlySet<number>>(() => new Set());
  const isAllShown = parts.every(({ text }, index) => isShort(text) || shown.has(index));
  const isBarred = isSent || !isAllShown;
  const offersMore = asked.rule !== "" && canOfferSessionApproval !== false;
  const once = (): void => void give({ decision: "approve" });
  const forSession = (): void => void give({ decision: "approve_for_session" });
  const keys = (key: string): boolean => {
    if (isSent || step !== "choose") return false;
    if (key === "a" && isAllShown) once();
    else if (key === "s" && offersMore && isAllShown) forSession();
    else if (key === "d") setStep("deny");
    else return false;
    return true;
  };
  const verb = VERBS[asked.permissionKind] ?? "use";
  const title = fitsTheQuestion(asked) ? (
    <>
      May it {verb} <code dir="ltr">{visibleLine(asked.subject)}</code>?
    </>
  ) : (
    `May it ${verb} this?`
  );
  return (
    <Card asked={asked} title={title} keys={keys}>
      {typeof intention === "string" && asked.permissionKind === "shell" && <p dir="auto">{visibleLine(intention)}</p>}
      {parts.map(({ text, language }, index) => (
        <WholeCode
          key={index}
          text={text}
          language={language}
          isShown={shown.has(index)}
          show={() => setShown(new Set([...shown, index]))}
        />
      ))}
      {typeof warning === "string" && (
        <p class="warning">
          <Icon name="warning" /> {visibleLine(warning)}
        </p>
      )}
      {step === "deny" && <Denying asked={asked} isSent={isSent} give={give} back={() => setStep("choose")} />}
      {step === "always" && <Always asked={asked} session={session} isSent={isSent} give={give} back={() => setStep("choose")} />}
      {step === "choose" && (
        <>
          <div class="buttons">
            <button type="button" class="primary" disabled={isBarred} aria-keyshortcuts="a" title="Allow once (A)" onClick={once}>
              Allow once
            </button>
            {offersMore && (
              <>
                <button
                  type="button"
                  disabled={isBarred}
                  aria-keyshortcuts="s"
                  aria-describedby={`means-${asked.requestId}`}
                  title="Allow for this session (S)"
                  onClick={forSession}
                >
                  Allow for this session
                </button>
                <button type="button" disabled={isBarred} onClick={() => setStep("always")}>
                  Always …
                </button>
              </>
            )}
            <button type="button" disabled={isSent} aria-keyshortcuts="d" title="Deny (D)" onClick={() => setStep("deny")}>
              Deny …
            </button>
          </div>
          {!isAllShown && <p class="aside">Only the beginning is shown. Show all of it to be able to allow it.</p>}
          {offersMore && (
            <p class="aside" id={`means-${asked.requestId}`}>
              For this session means: it may {meaningOf(asked)} without asking again.
            </p>
          )}
        </>
      )}
    </Card>
  );
}

function Denying({ asked, isSent, give, back }: { asked: Asked; isSent: boolean; give: Give; back: () => void }) {
  const [reason, setReason] = useState("");
  return (
    <form
      class="deny"
      onSubmit={(event) => {
        event.preventDefault();
        void give({ decision: "deny", feedback: reason.trim() });
      }}
      onKeyDown={(event) => {
        if (event.key === "Escape") back();
      }}
    >
      <label for={`reason-${asked.requestId}`}>What should the agent do instead? (optional)</label>
      <input
        id={`reason-${asked.requestId}`}
        dir="auto"
        autocomplete="off"
        value={reason}
        ref={focusOnce}
        onInput={(event) => setReason(event.currentTarget.value)}
      />
      <div class="buttons">
        <button type="submit" class="danger" disabled={isSent}>
          Deny
        </button>
        <button type="button" onClick={back}>
          Back
        </button>
      </div>
    </form>
  );
}

/** Explains a permission for always before it is granted: it also holds in future sessions. */
function Always({ asked, session, isSent, give, back }: Omit<Props, "given"> & { isSent: boolean; give: Give; back: () => void }) {
  const app = useApp();
  const directory = session.conversation.workingDirectory ?? app.settings.value?.working_directory;
  const may = meaningOf(asked);
  return (
    <div class="always" onKeyDown={(event) => event.key === "Escape" && back()}>
      <p>From now on, in this session and in those that you start later, it may {may} without asking.</p>
      <div class="buttons">
        {directory && (
          <button type="button" disabled={isSent} ref={focusOnce} onClick={() => void give({ decision: "approve_always" })}>
            Always in <code>{visibleLine(directory)}</code>
          </button>
        )}
        <button
          type="button"
          disabled={isSent}
          ref={directory ? null : focusOnce}
          onClick={() => void give({ decision: "approve_always", everywhere: true })}
        >
          Always, wherever a session works
        </button>
        <button type="button" onClick={back}>
          Back
        </button>
      </div>
    </div>
  );
}

function focusOnce(element: HTMLElement | null): void {
  element?.focus();
}

function Question({ asked, session }: Omit<Props, "given">) {
  const [isSent, give] = useAnswer(asked, session);
  const [text, setText] = useState("");
  const choose = (choice: string): void => void give({ answer: choice, was_freeform: false });
  const answer = (): void => {
    if (text.trim()) void give({ answer: text.trim(), was_freeform: true });
  };
  const keys = (key: string): boolean => {
    const choice = asked.choices[Number(key) - 1];
    if (isSent || choice === undefined) return false;
    choose(choice);
    return true;
  };
  return (
    <Card asked={asked} title={<span dir="auto">{visible(asked.question)}</span>} keys={keys}>
      {asked.choices.length > 0 && (
        <ol class="choices">
          {asked.choices.map((choice, index) => (
            <li key={choice}>
              <button
                type="button"
                disabled={isSent}
                aria-keyshortcuts={index < 9 ? String(index + 1) : undefined}
                onClick={() => choose(choice)}
              >
                <kbd aria-hidden="true">{index + 1}</kbd> <span dir="auto">{visible(choice)}</span>
              </button>
            </li>
          ))}
        </ol>
      )}
      {(asked.allowFreeform || asked.choices.length === 0) && (
        <Writing
          id={`answer-${asked.requestId}`}
          label={asked.choices.length ? "Or in your own words" : "Your answer"}
          text={text}
          setText={setText}
          send={answer}
        >
          <button type="submit" class="primary" disabled={isSent || text.trim() === ""}>
            Answer
          </button>
        </Writing>
      )}
    </Card>
  );
}

function ClientTool({ asked, session }: Omit<Props, "given">) {
  const [isSent, give] = useAnswer(asked, session);
  const [text, setText] = useState("");
  const title = (
    <>
      This waits for a program that runs <code>{visibleLine(asked.toolName)}</code>
    </>
  );
  return (
    <Card asked={asked} title={title}>
      <p class="aside">The turn continues when a client with this tool connects. You can also enter the result yourself.</p>
      <LongCode text={pretty(asked.arguments)} language="json" />
      <Writing
        id={`result-${asked.requestId}`}
        label="The result"
        text={text}
        setText={setText}
        send={() => void give({ content: text, success: true })}
      >
        <button type="submit" class="primary" disabled={isSent}>
          Give this result
        </button>
        <button
          type="button"
          disabled={isSent}
          title="Report to the model that the tool failed, with this text as the reason"
          onClick={() => void give({ content: text.trim() || "No client can run this tool.", success: false })}
        >
          Let it fail
        </button>
      </Writing>
    </Card>
  );
}

/** A text field with its buttons. Enter sends, Shift+Enter is a new line. */
function Writing({
  id,
  label,
  text,
  setText,
  send,
  children,
}: {
  id: string;
  label: string;
  text: string;
  setText: (text: string) => void;
  send: () => void;
  children: ComponentChildren;
}) {
  return (
    <form
      class="writing"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <label for={id}>{label}</label>
      <textarea
        id={id}
        dir="auto"
        rows={Math.min(8, Math.max(1, text.split("\n").length))}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          send();
        }}
      />
      <div class="buttons">{children}</div>
    </form>
  );
}
