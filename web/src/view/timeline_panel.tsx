/** The timeline: steps, attempts, holders, interruptions and hand-overs as a picture, with the log below it. */

import { useMemo, useState } from "preact/hooks";
import type { EventView } from "../api/wire.ts";
import { LANES, Scale, timelineOf, type Lane, type Mark, type Span, type Timeline } from "../model/timeline.ts";
import type { OpenSession } from "../model/open_session.ts";
import { useApp } from "./context.ts";
import { visible, visibleLine } from "./escapes.ts";
import { Icon } from "./icons.tsx";
import { duration, exactly } from "./words.ts";

const ROW = 22;
const GAP = 10;
const LEFT = 64;
const TOP = 26;

const LANE_WORDS: Record<Lane, string> = {
  holder: "held by",
  turn: "turn",
  model: "model",
  tools: "tools",
  people: "people",
  tasks: "tasks",
};

const MARK_WORDS: Record<Mark["kind"], string> = {
  crash: "Crash",
  "hand-over": "Taken over",
  stop: "Stop",
  error: "Error",
  retry: "Call failed",
  rewind: "Rewind",
  message: "Message",
};

export function TimelinePanel({ session }: { session: OpenSession }) {
  const app = useApp();
  session.drawn.value;
  const count = session.log.length;
  const timeline = useMemo(() => timelineOf(session.log), [session, count]);
  const [chosen, setChosen] = useState<number | null>(null);
  return (
    <aside class="panel timeline" aria-label="Timeline">
      <header>
        <h2>Timeline</h2>
        <button type="button" class="quiet" aria-label="Close the timeline" onClick={() => (app.panel.value = "none")}>
          <Icon name="close" />
        </button>
      </header>
      {count === 0 ? <p class="aside">Nothing has happened yet.</p> : <Picture timeline={timeline} chosen={chosen} choose={setChosen} />}
      <Facts timeline={timeline} />
      <h3>The log</h3>
      <Log log={session.log} chosen={chosen} />
    </aside>
  );
}

function Picture({ timeline, chosen, choose }: { timeline: Timeline; chosen: number | null; choose: (position: number) => void }) {
  const scale = useMemo(() => new Scale(timeline.times), [timeline]);
  const tops = laneTops(timeline);
  const height = tops.total;
  const width = LEFT + scale.width + 40;
  return (
    <div class="picture" tabIndex={0} role="group" aria-label="Timeline of the log; the list below has the same content">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="presentation">
        {LANES.map((lane) => (
          <g key={lane}>
            <line class="lane-line" x1={LEFT} x2={width} y1={tops[lane] - GAP / 2} y2={tops[lane] - GAP / 2} />
            <text class="lane-name" x={0} y={tops[lane] + ROW / 2 + 4}>
              {LANE_WORDS[lane]}
            </text>
          </g>
        ))}
        {scale.breaks.map((pause) => (
          <text key={pause.x} class="pause" x={LEFT + pause.x} y={12} text-anchor="middle">
            {duration(pause.ms)}
          </text>
        ))}
        {timeline.spans.map((span) => (
          <SpanBox key={`${span.lane}${span.position}`} span={span} scale={scale} top={tops[span.lane]} isChosen={chosen === span.position} choose={choose} />
        ))}
        {timeline.marks.map((mark) => (
          <MarkLine key={`${mark.kind}${mark.position}`} mark={mark} x={LEFT + scale.x(mark.time)} height={height} choose={choose} />
        ))}
      </svg>
    </div>
  );
}

function laneTops(timeline: Timeline): Record<Lane, number> & { total: number } {
  let y = TOP;
  const tops = {} as Record<Lane, number> & { total: number };
  for (const lane of LANES) {
    tops[lane] = y;
    y += timeline.rows[lane] * ROW + GAP;
  }
  tops.total = y;
  return tops;
}

function SpanBox({
  span,
  scale,
  top,
  isChosen,
  choose,
}: {
  span: Span;
  scale: Scale;
  top: number;
  isChosen: boolean;
  choose: (position: number) => void;
}) {
  const from = scale.x(span.from);
  const to = span.to === null ? scale.width + 30 : scale.x(span.to);
  const width = Math.max(4, to - from);
  const y = top + span.row * ROW;
  return (
    <g class={`span ${span.tone} ${isChosen ? "chosen" : ""}`} onClick={() => choose(span.position)}>
      <title>{sentence(span)}</title>
      <rect x={LEFT + from} y={y} width={width} height={ROW - 4} rx={4} />
      {width > 34 && (
        <text x={LEFT + from + 5} y={y + 13}>
          {visibleLine(span.label).slice(0, Math.floor((width - 8) / 6.2))}
        </text>
      )}
    </g>
  );
}

function MarkLine({ mark, x, height, choose }: { mark: Mark; x: number; height: number; choose: (position: number) => void }) {
  return (
    <g class={`mark ${mark.kind}`} onClick={() => choose(mark.position)}>
      <title>
        {MARK_WORDS[mark.kind]}: {visibleLine(mark.label)}
      </title>
      <line x1={x} x2={x} y1={TOP - 6} y2={height} />
      <circle cx={x} cy={TOP - 8} r={4.5} />
    </g>
  );
}

function sentence(span: Span): string {
  const took = span.to === null ? "goes on" : duration(Math.max(1, span.to - span.from));
  return visible([`${LANE_WORDS[span.lane]}: ${span.label}`, span.detail, took].filter(Boolean).join(" · "));
}

/** The marks of the timeline in words, without the messages. */
function Facts({ timeline }: { timeline: Timeline }) {
  const told = timeline.marks.filter((mark) => mark.kind !== "message");
  if (told.length === 0) return <p class="aside">No crash, hand-over, stop or failure so far.</p>;
  return (
    <ul class="facts">
      {told.map((mark) => (
        <li key={mark.position} class={mark.kind}>
          <time>{exactly(mark.time)}</time> <strong>{MARK_WORDS[mark.kind]}</strong> {visibleLine(mark.label)}
        </li>
      ))}
    </ul>
  );
}

const LISTED = 300;

function Log({ log, chosen }: { log: EventView[]; chosen: number | null }) {
  const at = chosen === null ? -1 : log.findIndex((event) => event.position === chosen);
  const from = at < 0 ? Math.max(0, log.length - LISTED) : Math.max(0, at - LISTED / 2);
  return (
    <ol class="log">
      {log.slice(from, from + LISTED).map((event) => (
        <li
          key={event.id}
          class={event.position === chosen ? "chosen" : undefined}
          ref={(row) => {
            if (event.position === chosen) row?.scrollIntoView({ block: "nearest" });
          }}
        >
          <details>
            <summary>
              <span class="number">{event.position}</span> <code>{event.type}</code>
              <time title={exactly(event.time)}>{new Date(event.time).toLocaleTimeString()}</time>
            </summary>
            <pre>{visible(JSON.stringify(event.data, null, 2).slice(0, 5_000))}</pre>
          </details>
        </li>
      ))}
    </ol>
  );
}
