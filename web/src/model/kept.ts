/** Small things that this browser keeps: who one is, drafts, messages on their way. Nothing breaks where it may not keep. */

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
    // Private windows and full storage: the page still works, until it is closed.
  }
}
