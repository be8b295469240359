/** The box for messages. Enter sends, or joins the running turn; Esc stops it; a refused message returns to the box. */

import { useComputed, useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { newId } from "../api/server.ts";
import { AttachedFiles } from "../model/attached.ts";
import { keep, kept } from "../model/kept.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";
import { chosenFor, keepChosen, ModelPicker, type Chosen } from "./model_picker.tsx";
import { AttachedList } from "./files.tsx";
import { QueueChips, type ToBox } from "./queue_chips.tsx";
import { focusRequest } from "./shortcuts.ts";

/** `/compact`, and what the summary should keep. */
const COMPACT = /^\/compact(?:\s+([^]*))?$/;

const TALLEST_PX = 240;
/** Browsers that fit a box to its content by CSS need no measuring, which would cost a layout. */
const FITS_ITSELF = CSS.supports("field-sizing", "content");

export function Composer({ session }: { session: OpenSession | null }) {
  const app = useApp();
  const name = session?.id ?? "new";
  const [text, setText] = useState(() => kept(`draft.${name}`, ""));
  const [chosen, setChosen] = useState<Chosen>(() => chosenFor(name));
  const [refusal, setRefusal] = useState("");
  const box = useRef<HTMLTextAreaElement>(null);
  // Rendered when its own content changes, and not for every delta of an answer.
  useComputed(() => (session?.drawn.value, howItStands(session))).value;
  const turn = session?.conversation.turn ?? null;
  const files = useMemo(() => new AttachedFiles(app.server, name), [app.server, name]);
  const picker = useRef<HTMLInputElement>(null);
  const [isOver, setOver] = useState(false);
  const hasFiles = files.all.value.length > 0;
  const isEmpty = !text.trim() && files.ready.length === 0;
  const toBox: ToBox = (back, more = []) => {
    if (back) setText((now) => (now.trim() ? `${back}\n\n${now}` : back));
    files.giveBack(more);
  };
  const attach = (given: FileList | File[] | null | undefined): boolean => {
    if (!given?.length) return false;
    setRefusal(files.add(given));
    box.current?.focus();
    return true;
  };

  useSignalEffect(() => {
    const back = app.givenBack.value;
    if (!back || (session && back.sessionId !== session.id)) return;
    app.givenBack.value = null;
    toBox(back.text, back.files);
    setRefusal(back.reason);
  });
  // Synchronously: by the next frame another session may be open.
  useLayoutEffect(() => keep(`draft.${name}`, text), [name, text]);
  useEffect(() => fit(box.current), [text]);
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) box.current?.focus();
  }, []);

  const choose = (wanted: Chosen): void => {
    setChosen(wanted);
    keepChosen(name, wanted);
  };
  const send = (delivery: "steer" | "enqueue" | "interrupt" = "steer"): void => {
    const wanted = text.trim();
    if (isEmpty || files.isUploading) return;
    setText("");
    keep(`draft.${name}`, null);
    setRefusal("");
    const command = COMPACT.exec(wanted);
    if (command && session) {
      void app.compact(session.id, command[1] ?? "").then((isAccepted) => !isAccepted && toBox(wanted));
      box.current?.focus();
      return;
    }
    app.send(wanted, delivery, { ...chosen }, files.ready);
    files.clear();
    // A session that this message creates keeps the options that were chosen for it.
    if (!session && app.open.value) keepChosen(app.open.value.id, chosen);
    box.current?.focus();
  };
  const stop = async (): Promise<void> => {
    if (!session) return;
    const done = await app.attempt(() => app.server.stop(session.id, newId(), { turnId: turn?.turnId }));
    const back = done?.returned_messages ?? [];
    if (done?.returned?.length) toBox(done.returned.join("\n\n"), back.flatMap((message) => message.files ?? []));
  };
  const pressed = (event: KeyboardEvent): void => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send(event.altKey ? "enqueue" : event.ctrlKey || event.metaKey ? "interrupt" : "steer");
    } else if (event.key === "Escape" && turn !== null) {
      event.preventDefault();
      void stop();
    } else if (event.key === "ArrowUp" && text === "" && focusRequest()) event.preventDefault();
  };

  return (
    <form
      class={isOver ? "composer over" : "composer"}
      onDragOver={(event) => {
        if (!event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        setOver(false);
        if (attach(event.dataTransfer?.files)) event.preventDefault();
      }}
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      {session && <QueueChips session={session} toBox={toBox} />}
      {refusal && (
        <p class="problem" role="alert">
          {refusal}
        </p>
      )}
      <AttachedList files={files} />
      <div class="composer-box">
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          onChange={(event) => {
            attach([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = "";
          }}
        />
        <button type="button" class="round quiet" aria-label="Attach files" title="Attach files" onClick={() => picker.current?.click()}>
          <Icon name="clip" />
        </button>
        <label class="hidden" for="composer">
          {turn?.state === "running" ? "Message to the running turn" : "Message"}
        </label>
        <textarea
          id="composer"
          ref={box}
          rows={1}
          dir="auto"
          value={text}
          enterkeyhint="send"
          placeholder={turn ? "Add to the running turn …" : "What should be done?"}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={pressed}
          onPaste={(event) => {
            if (attach(event.clipboardData?.files)) event.preventDefault();
          }}
        />
        {turn !== null && !text.trim() && !hasFiles ? (
          <button type="button" class="round" aria-label="Stop" title="Stop (Esc)" onClick={() => void stop()}>
            <Icon name="stop" />
          </button>
        ) : (
          <button type="submit" class="round primary" aria-label="Send" title="Send (Enter)" disabled={isEmpty || files.isUploading}>
            <Icon name="send" />
          </button>
        )}
      </div>
      <div class="composer-foot">
        <ModelPicker chosen={chosen} choose={choose} />
        <p class="keys" aria-hidden="true">
          {COMPACT.test(text.trim()) && session ? "Enter summarises the older part for the model" : hint(session, text)}
        </p>
      </div>
    </form>
  );
}

/** The parts of a conversation that the box depends on. */
function howItStands(session: OpenSession | null): string {
  const { turn, openRequests } = session?.conversation ?? {};
  return turn ? `${turn.turnId} ${turn.state} ${openRequests?.length}` : "";
}

/** The shortcuts that work right now. */
function hint(session: OpenSession | null, text: string): string {
  const turn = session?.conversation.turn;
  if (!turn) return "Enter sends · Shift+Enter for a new line";
  if (turn.state === "waiting" && !text && session?.conversation.openRequests.length) return "↑ to the open request · Esc stops";
  return "Enter joins this turn · Alt+Enter waits for the next · Esc stops";
}

function fit(box: HTMLTextAreaElement | null): void {
  if (!box || FITS_ITSELF) return;
  box.style.height = "auto";
  box.style.height = `${Math.min(TALLEST_PX, box.scrollHeight)}px`;
}
