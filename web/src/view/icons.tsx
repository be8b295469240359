/** Icons, beside words or in buttons with a label. */

const PATHS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5m-6 6 6-6 6 6",
  stop: "M7 7h10v10H7z",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14m9 2-4.5-4.5",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6 6 18",
  clip: "M20 11.5 12 19.4a5 5 0 0 1-7-7l8.5-8.5a3.3 3.3 0 0 1 4.7 4.7l-8.4 8.4a1.6 1.6 0 0 1-2.3-2.3l7.6-7.6",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
  more: "M4.4 12a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0M11.4 12a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0M18.4 12a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0",
  pin: "M9 4h6l-1 6 3 3v2H7v-2l3-3zM12 15v6",
  check: "M5 13l4 4L19 7",
  chevron: "M9 6l6 6-6 6",
  down: "M12 5v14m-6-6 6 6 6-6",
  copy: "M9 9h10v10H9zM5 15V5h10",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  retry: "M4 12a8 8 0 1 1 2.5 5.8M4 19v-5h5",
  tasks: "M5 6h.01M9 6h10M5 12h.01M9 12h10M5 18h.01M9 18h10",
  timeline: "M4 18h16M7 18V9m5 9V5m5 13v-6",
  overview: "M4 4h7v7H4zM13 4h7v4h-7zM13 10h7v10h-7zM4 13h7v7H4z",
  usage: "M5 20V10m7 10V4m7 16v-7",
  fork: "M7 5v6a4 4 0 0 0 4 4h6M17 5v14M7 5a1 1 0 1 0 0-.01M17 20a1 1 0 1 0 0-.01",
  warning: "M12 4 2.5 20h19zM12 10v5m0 2.5v.01",
  bell: "M6 10a6 6 0 1 1 12 0c0 5 2 6 2 6H4s2-1 2-6m4 9a2 2 0 0 0 4 0",
  "bell-off": "M6 10a6 6 0 0 1 9-5.2M18 10c0 5 2 6 2 6H8m2 3a2 2 0 0 0 4 0M4 3l17 18",
  system: "M4 5h16v11H4zM9 20h6m-3-4v4",
  light: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8m0-13v2m0 14v2M3 12h2m14 0h2M5.6 5.6 7 7m10 10 1.4 1.4M5.6 18.4 7 17M17 7l1.4-1.4",
  dark: "M20 14.5A8 8 0 1 1 9.5 4a6.5 6.5 0 0 0 10.5 10.5",
  shield: "M12 3 5 6v5c0 4.5 3 8 7 10 4-2 7-5.5 7-10V6zM9 12l2 2 4-4",
  keys: "M3 7h18v10H3zM7 11h.01M11 11h.01M15 11h.01M8 14h8",
  leave: "M14 4h5v16h-5M3 12h11m-4-4 4 4-4 4",
  bring: "M12 4v11m-5-5 5 5 5-5M5 20h14",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18M12 7v5l3 3",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, class: extra = "" }: { name: IconName; class?: string }) {
  return (
    <svg class={`icon ${extra}`} viewBox="0 0 24 24" width="18" height="18" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}
