/** The theme: light, dark, or that of the system. Stored in this browser. */

import { effect, signal, type Signal } from "@preact/signals";
import { keep, kept } from "../model/kept.ts";

export type Theme = "system" | "light" | "dark";

export const THEMES: Record<Theme, string> = { system: "As the system", light: "Light", dark: "Dark" };

const found = kept<Theme>("theme", "system");
export const theme: Signal<Theme> = signal<Theme>(found in THEMES ? found : "system");

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  keep("theme", theme.value === "system" ? null : theme.value);
});

export function nextTheme(): void {
  const order = Object.keys(THEMES) as Theme[];
  theme.value = order[(order.indexOf(theme.value) + 1) % order.length]!;
}
