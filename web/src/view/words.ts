/** Times and durations in few words. */

export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.max(1, Math.round(ms))} ms`;
  const seconds = ms / 1_000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const numbers = new Intl.NumberFormat();
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const weekday = new Intl.DateTimeFormat(undefined, { weekday: "long", hour: "2-digit", minute: "2-digit" });
const ofCalendar = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: "UTC" });

/** A time within the next week. */
export function weekdayAndTime(time: number): string {
  return weekday.format(time);
}

/** A day such as 2026-11-20, in few words. */
export function calendarDay(date: string): string {
  return ofCalendar.format(Date.parse(date));
}

export function moment(time: number, now = Date.now()): string {
  const isToday = new Date(time).toDateString() === new Date(now).toDateString();
  return isToday ? clock.format(time) : day.format(time);
}

export function exactly(time: number): string {
  return whole.format(time);
}

/** A number in the format of the person's locale. */
export function digits(number: number): string {
  return numbers.format(number);
}

export function count(number: number, one: string, many = `${one}s`): string {
  return `${number} ${number === 1 ? one : many}`;
}
