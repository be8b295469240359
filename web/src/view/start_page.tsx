/** Before the first message: what this is, and things to try. */

import { useApp } from "./context.ts";
import { imported } from "./session_menu.tsx";

const SUGGESTIONS = [
  { title: "An approval", text: "Write a haiku to haiku.txt", about: "It asks before it writes. Answer here, or from anywhere." },
  { title: "A slow command", text: "Run the slow build", about: "It goes on in the background, and reports when it is done." },
  { title: "A long answer", text: "Tell me a long story", about: "Close the page in the middle; come back; it is all there." },
  { title: "What survives", text: "What happens if you crash?", about: "Kill the server while it answers, and start it again." },
];

export function StartPage() {
  const app = useApp();
  return (
    <div class="start">
      <div class="column">
        <h2>What should be done?</h2>
        <p>What you start here goes on when you close this page, when the network fails, and when the server is restarted.</p>
        <ul class="suggestions">
          {SUGGESTIONS.map((suggestion) => (
            <li key={suggestion.title}>
              <button type="button" onClick={() => app.send(suggestion.text)}>
                <strong>{suggestion.title}</strong>
                <span>{suggestion.text}</span>
                <span class="aside">{suggestion.about}</span>
              </button>
            </li>
          ))}
        </ul>
        <label class="link">
          Import a session
          <input
            type="file"
            accept="application/json"
            class="hidden"
            onChange={(event) => {
              const file = event.currentTarget.files?.[0];
              if (file) void imported(app, file);
            }}
          />
        </label>
      </div>
    </div>
  );
}
