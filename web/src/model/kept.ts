/** Values stored in this browser: the key, drafts, unsent messages. If storage is not available, the page works without it. */

export function kept<T>(name: string, otherwise: T): T {
  try {
    const found = localStorage.getItem(`holdfast.${name}`);
    return found === null ? otherwise : (JSON.parse(found) as T);
  } catch {
    return otherwise;
  }
}

export function keep(name: string, value: unknown): void {
  try {
    if (value === null || value === undefined || value === "") localStorage.removeItem(`holdfast.${name}`);
    else localStorage.setItem(`holdfast.${name}`, JSON.stringify(value));
  } catch {
    // A private window, or full storage: the value is lost when the page is closed.
  }
}
