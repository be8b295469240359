/** The tasks of a session: their status and output, with a button that kills each. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { TaskView } from "../api/wire.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { visible, visibleLine } from "./escapes.ts";
import { Icon } from "./icons.tsx";
import { duration, exactly } from "./words.ts";

const LOOK_EVERY_MS = 1_000;
const MOST_KEPT = 60_000;

export function TasksPanel({ session }: { session: OpenSession }) {
  const app = useApp();
  const [tasks, setTasks] = useState<TaskView[] | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let isOpen = true;
    const look = async (): Promise<void> => {
      while (isOpen) {
        try {
          const found = await app.server.tasks(session.id);
          if (isOpen) setTasks(found);
          setProblem("");
        } catch (error) {
          setProblem((error as Error).message);
        }
        await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
      }
    };
    void look();
    return () => {
      isOpen = false;
    };
  }, [session]);
  return (
    <aside class="panel" aria-label="Tasks">
      <header>
        <h2>Tasks</h2>
        <button type="button" class="quiet" aria-label="Close the tasks" onClick={() => (app.panel.value = "none")}>
          <Icon name="close" />
        </button>
      </header>
      {problem && <p class="problem">{problem}</p>}
      {tasks?.length === 0 && <p class="aside">No command was started in this session.</p>}
      <ul class="tasks">
        {tasks?.map((task) => (
          <Task key={task.id} task={task} session={session} startsOpen={task.status === "running"} />
        ))}
      </ul>
    </aside>
  );
}

function Task({ task, session, startsOpen }: { task: TaskView; session: OpenSession; startsOpen: boolean }) {
  const app = useApp();
  const [isOpen, setOpen] = useState(startsOpen);
  const isRunning = task.ended_at === null;
  return (
    <li class={`task ${task.status}`}>
      <button type="button" class="task-head" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <span class={`dot ${isRunning ? "running" : task.exit_code === 0 ? "done" : "failed"}`} aria-hidden="true" />
        <code dir="ltr">{visible(task.description || task.command)}</code>
      </button>
      <p class="aside" title={exactly(task.started_at)}>
        {task.id} · {task.status}
        {task.exit_code !== null && ` · exit ${task.exit_code}`} · {duration(task.duration_ms)}
        {task.detail && ` · ${visible(task.detail)}`}
      </p>
      {isOpen && <Output task={task} session={session} />}
      {isRunning && (
        <div class="buttons">
          <button type="button" class="danger" onClick={() => void app.attempt(() => app.server.kill(session.id, task.id))}>
            Kill
          </button>
          {task.foreground && (
            <button
              type="button"
              title="The turn continues without waiting for it"
              onClick={() => void app.attempt(() => app.server.toBackground(session.id, task.id))}
            >
              To the background
            </button>
          )}
        </div>
      )}
    </li>
  );
}

/** The output of a command as it grows. */
function Output({ task, session }: { task: TaskView; session: OpenSession }) {
  const app = useApp();
  const [text, setText] = useState("");
  const box = useRef<HTMLPreElement>(null);
  const isRunning = task.ended_at === null;
  useEffect(() => {
    let isOpen = true;
    let offset = 0;
    const follow = async (): Promise<void> => {
      while (isOpen) {
        const part = await app.server.taskOutput(session.id, task.id, offset).catch(() => null);
        if (!isOpen) return;
        if (part && part.next_offset > offset) {
          offset = part.next_offset;
          setText((before) => (before + part.text).slice(-MOST_KEPT));
          continue;
        }
        if (!isRunning) return;
        await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
      }
    };
    setText("");
    void follow();
    return () => {
      isOpen = false;
    };
  }, [task.id, isRunning]);
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return (
    <pre class="output" ref={box} tabIndex={0} aria-label={`Output of ${visibleLine(task.command)}`}>
      {text || "Nothing yet."}
    </pre>
  );
}
