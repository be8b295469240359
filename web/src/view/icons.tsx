/** Pictures that stand beside words, or for a button that has a label. */

const PATHS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5m-6 6 6-6 6 6",
  stop: "M7 7h10v10H7z",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14m9 2-4.5-4.5",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6 6 18",
  more: "M5 12h.01M12 12h.01M19 12h.01",
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
  fork: "M7 5v6a4 4 0 0 0 4 4h6M17 5v14M7 5a1 1 0 1 0 0-.01M17 20a1 1 0 1 0 0-.01",
  warning: "M12 4 2.5 20h19zM12 10v5m0 2.5v.01",
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
