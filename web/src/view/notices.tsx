/** Short notices for the person, which disappear by themselves. */

import { useApp } from "./context.ts";
import { visible } from "./escapes.ts";
import { Icon } from "./icons.tsx";

export function Notices() {
  const app = useApp();
  return (
    <div class="notices" role="status" aria-live="polite">
      {app.notices.value.map((notice) => (
        <div key={notice.key} class={`notice ${notice.tone}`}>
          <span>{visible(notice.text)}</span>
          <button type="button" class="quiet" aria-label="Dismiss" onClick={() => app.dismiss(notice.key)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
