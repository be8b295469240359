/** The page before the first message: a short introduction, and suggestions. */

import { useApp } from "./context.ts";
import { useOffered } from "./model_picker.tsx";
import { chooseImport } from "./session_menu.tsx";
import { ANYWHERE, WITH_DEMO } from "./suggestions.ts";

export function StartPage() {
  const app = useApp();
  const models = useOffered();
  const isDemo = models.some((model) => model.is_default && model.name === "demo");
  const suggestions = models.length === 0 ? [] : isDemo ? WITH_DEMO : ANYWHERE;
  return (
    <div class="start">
      <div class="column">
        <h2>What should be done?</h2>
        <p>Your session continues when you close this page, when the network fails, and when the server restarts.</p>
        <ul class="suggestions">
          {suggestions.map((suggestion) => (
            <li key={suggestion.title}>
              <button type="button" onClick={() => app.send(suggestion.text)}>
                <span class="aside">{suggestion.title}</span>
                <strong>{suggestion.text}</strong>
                <span class="aside">{suggestion.about}</span>
              </button>
            </li>
          ))}
        </ul>
        <p class="start-foot">
          {isDemo && "The demo model answers from a script: no key, no cost, nothing leaves this machine. "}
          <button type="button" class="link" onClick={() => chooseImport(app)}>
            Import a session
          </button>
        </p>
      </div>
    </div>
  );
}
