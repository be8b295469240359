/** The choice of the model and of its thinking budget, for the messages of one session; stored in this browser. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Offered } from "../api/wire.ts";
import { keep, kept } from "../model/kept.ts";
import { useApp } from "./context.ts";

/** The options that a message is sent with; a missing one is that of the session or the server. */
export interface Chosen {
  model?: string;
  thinking?: "off" | number;
}

const THINKING = [
  ["", "Thinking: model’s default"],
  ["off", "No thinking"],
  ["4000", "Brief thinking"],
  ["16000", "Medium thinking"],
  ["32000", "Long thinking"],
] as const;

const DEMO = "demo";

export const offered = signal<Offered[]>([]);

export function chosenFor(id: string): Chosen {
  return kept<Chosen>(`options.${id}`, {});
}

export function keepChosen(id: string, chosen: Chosen): void {
  keep(`options.${id}`, Object.keys(chosen).length ? chosen : null);
}

export function useOffered(): Offered[] {
  const app = useApp();
  useEffect(() => {
    if (offered.value.length) return;
    app.server.models().then(
      (models) => (offered.value = models),
      () => {},
    );
  }, [app.token.value]);
  return offered.value;
}

/** Empty if there is no choice. The demo model, and one that does not think, have no thinking budget. */
export function ModelPicker({ chosen, choose }: { chosen: Chosen; choose: (chosen: Chosen) => void }) {
  const app = useApp();
  const models = useOffered();
  const usual = app.settings.value?.model ?? models.find((model) => model.is_default)?.name ?? "";
  const names = [...new Set([...models.map((model) => model.name), ...(chosen.model ? [chosen.model] : [])])];
  const answers = chosen.model ?? usual;
  const thinks = answers !== DEMO && models.find((model) => model.name === answers)?.thinking !== false;
  return (
    <div class="picker">
      {names.some((name) => name !== usual) && (
        <label>
          <span class="hidden">Model</span>
          <select
            value={chosen.model ?? ""}
            title="Model that answers"
            onChange={(event) => choose(changed(chosen, "model", event.currentTarget.value))}
          >
            <option value="">{usual || "Default model"}</option>
            {names.filter((name) => name !== usual).map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
      )}
      {models.length > 0 && thinks && (
        <label>
          <span class="hidden">Thinking</span>
          <select
            value={String(chosen.thinking ?? "")}
            title="How long the model may think before it answers"
            onChange={(event) => choose(changed(chosen, "thinking", event.currentTarget.value))}
          >
            {THINKING.map(([value, words]) => (
              <option key={value} value={value}>
                {words}
              </option>
            ))}
          </select>
        </label>
      )}
    </div>
  );
}

function changed(chosen: Chosen, name: keyof Chosen, value: string): Chosen {
  const { [name]: _, ...rest } = chosen;
  if (value === "") return rest;
  return { ...rest, [name]: name === "thinking" && value !== "off" ? Number(value) : value };
}
