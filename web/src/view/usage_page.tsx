/** The usage: how much of the person's budget is used. For admins also what was spent, on what, and who is near a limit. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { BudgetView, OwnerGauge, UsageRow, UsageView, WindowView } from "../api/wire.ts";
import { useApp } from "./context.ts";
import { visibleLine } from "./escapes.ts";
import { Icon } from "./icons.tsx";
import { money } from "./turn_figures.tsx";
import { calendarDay, count, digits, weekdayAndTime } from "./words.ts";

/** The longest lists of models and owners; the rest is one more bar. */
const MOST_BARS = 8;

const NEAR_PERCENT = 80;

interface Spending {
  days: UsageView;
  models: UsageView;
  owners: UsageView;
  near: OwnerGauge[];
}

export function UsagePage() {
  const app = useApp();
  const [budget, setBudget] = useState<BudgetView | null>(null);
  const [spending, setSpending] = useState<Spending | null>(null);
  const [problem, setProblem] = useState("");
  const load = async (isWanted: () => boolean): Promise<void> => {
    try {
      const found = await app.server.budget();
      if (!isWanted()) return;
      setBudget(found);
      setProblem("");
      // Amounts are for admins only: a server sends them to nobody else.
      if (found.day.spent_microdollars === undefined) return setSpending(null);
      const [days, models, owners, near] = await Promise.all([
        app.server.usage("day"),
        app.server.usage("model"),
        app.server.usage("owner"),
        app.server.owners(NEAR_PERCENT),
      ]);
      if (isWanted()) setSpending({ days, models, owners, near: near.owners });
    } catch (error) {
      if (isWanted()) setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  useEffect(() => {
    let isWanted = true;
    void load(() => isWanted);
    return () => {
      isWanted = false;
    };
  }, [app.token.value]);
  const reset = async (): Promise<void> => {
    const after = await app.attempt(() => app.server.resetBudget());
    if (after) setBudget(after);
  };
  return (
    <section class="overview" aria-labelledby="usage-title">
      <header class="chat-header">
        <button type="button" class="quiet only-phone" aria-label="Show the sessions" onClick={() => (app.listIsOpen.value = true)}>
          <Icon name="menu" />
        </button>
        <h1 id="usage-title">Usage</h1>
        {budget?.tier && <span class="tag">{visibleLine(budget.tier)}</span>}
      </header>
      <div class="overview-body usage" tabIndex={0} role="group" aria-labelledby="usage-title" aria-busy={budget === null && !problem}>
        {problem && <p class="problem">{problem}</p>}
        {budget && (
          <div class="gauges">
            <Gauge name="Today" window={budget.day}>
              {budget.can_reset && budget.day.is_blocked && (
                <button type="button" onClick={() => void reset()}>
                  <Icon name="retry" /> Reset today
                </button>
              )}
            </Gauge>
            <Gauge name="This week" window={budget.week} />
          </div>
        )}
        {spending && <Pictures spending={spending} />}
      </div>
    </section>
  );
}

function Gauge({ name, window, children }: { name: string; window: WindowView; children?: ComponentChildren }) {
  return (
    <div class={window.is_blocked ? "gauge used-up" : "gauge"}>
      <h2>{name}</h2>
      <p class="gauge-figure">{window.percent === null ? (window.is_blocked === null ? "Unknown" : "No limit") : `${window.percent.toFixed(1)} %`}</p>
      {window.percent !== null && <Meter label={name} percent={window.percent} />}
      <p class="aside">
        {window.spent_microdollars !== undefined && `${money(window.spent_microdollars)} ${ofLimit(window)}`}
        {window.spent_microdollars !== undefined && window.resets_at !== null && " · "}
        {window.resets_at !== null && `Starts again ${weekdayAndTime(window.resets_at)}`}
      </p>
      {children}
    </div>
  );
}

function ofLimit(window: WindowView): string {
  return typeof window.limit_microdollars === "number" ? `of ${money(window.limit_microdollars)}` : "spent";
}

function Meter({ label, percent }: { label: string; percent: number }) {
  const full = percent >= 100 ? " full" : percent >= NEAR_PERCENT ? " nearly" : "";
  return (
    <span class={`long-meter${full}`} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent}>
      <span style={{ width: `${percent}%` }} />
    </span>
  );
}

function Pictures({ spending: { days, models, owners, near } }: { spending: Spending }) {
  const { total } = days;
  return (
    <>
      <h2 class="usage-part">Everybody, in the last 30 days</h2>
      <dl class="figures">
        <Figure name="Charged" value={money(total.charged_microdollars)} />
        <Figure name="Calls" value={digits(total.calls)} />
        <Figure name="Of unknown cost" value={digits(total.unknown_calls)} />
        <Figure name="Saved by caches" value={total.saved_microdollars === null ? "unknown" : money(total.saved_microdollars)} />
      </dl>
      <div class="charts">
        <Days usage={days} />
        <Bars title="By model" rows={models.rows} total={total} nameOf={(row) => row.model || "(unknown)"} />
        <Bars title="By owner" rows={owners.rows} total={total} nameOf={(row) => row.owner || "(unknown)"} />
        <Near owners={near} />
      </div>
    </>
  );
}

function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div class="figure">
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

/** One column for each day, also for those without a call. */
function Days({ usage }: { usage: UsageView }) {
  const found = new Map(usage.rows.map((row) => [row.day, row]));
  const days = daysFrom(usage.from, usage.to);
  const most = Math.max(1, ...usage.rows.map((row) => row.charged_microdollars));
  return (
    <figure class="chart wide-chart">
      <figcaption>
        By day <span class="aside">{usage.rows.length > 0 && `up to ${money(most)}`}</span>
      </figcaption>
      <ol class="columns">
        {days.map((day) => {
          const row = found.get(day);
          const charged = row?.charged_microdollars ?? 0;
          const words = `${calendarDay(day)}: ${money(charged)}, ${count(row?.calls ?? 0, "call")}`;
          return (
            <li key={day} title={words}>
              <span class="column-bar" style={{ height: `${(charged * 100) / most}%` }} />
              <span class="hidden">{words}</span>
            </li>
          );
        })}
      </ol>
      <p class="axis aside" aria-hidden="true">
        <span>{calendarDay(usage.from)}</span>
        <span>{calendarDay(usage.to)}</span>
      </p>
    </figure>
  );
}

function daysFrom(first: string, last: string): string[] {
  const days: string[] = [];
  for (let day = Date.parse(first); day <= Date.parse(last); day += 86_400_000) days.push(new Date(day).toISOString().slice(0, 10));
  return days;
}

function Bars({ title, rows, total, nameOf }: { title: string; rows: UsageRow[]; total: UsageRow; nameOf: (row: UsageRow) => string }) {
  const shown = rows.slice(0, MOST_BARS);
  const bars = shown.map((row) => ({ name: visibleLine(nameOf(row)), charged: row.charged_microdollars, calls: row.calls }));
  const [charged, calls] = [bars.reduce((sum, bar) => sum + bar.charged, 0), bars.reduce((sum, bar) => sum + bar.calls, 0)];
  if (total.calls > calls) bars.push({ name: "All others", charged: total.charged_microdollars - charged, calls: total.calls - calls });
  const most = Math.max(1, ...bars.map((bar) => bar.charged));
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <ul class="bars">
        {bars.map((bar) => (
          <li key={bar.name}>
            <span class="bar-name" dir="auto" title={bar.name}>
              {bar.name}
            </span>
            <span class="bar-figure" title={count(bar.calls, "call")}>
              {money(bar.charged)}
            </span>
            <span class="bar" aria-hidden="true">
              <span style={{ width: `${(bar.charged * 100) / most}%` }} />
            </span>
          </li>
        ))}
      </ul>
      {bars.length === 0 && <p class="aside">No calls yet.</p>}
    </figure>
  );
}

function Near({ owners }: { owners: OwnerGauge[] }) {
  return (
    <figure class="chart">
      <figcaption>Near a limit</figcaption>
      <ul class="bars">
        {owners.slice(0, MOST_BARS).map((owner) => {
          const isDay = (owner.day.percent ?? 0) >= (owner.week.percent ?? 0);
          const percent = (isDay ? owner.day.percent : owner.week.percent) ?? 0;
          const name = visibleLine(owner.owner);
          return (
            <li key={owner.owner}>
              <span class="bar-name" dir="auto" title={name}>
                {name} {owner.tier && <span class="tag">{visibleLine(owner.tier)}</span>}
              </span>
              <span class="bar-figure">
                {percent.toFixed(1)} % <span class="aside">of the {isDay ? "day" : "week"}</span>
              </span>
              <Meter label={name} percent={percent} />
            </li>
          );
        })}
      </ul>
      {owners.length > MOST_BARS && <p class="aside">And {count(owners.length - MOST_BARS, "more owner")}.</p>}
      {owners.length === 0 && <p class="aside">Nobody has used {NEAR_PERCENT} % of a limit.</p>}
    </figure>
  );
}
