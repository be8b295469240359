/** For who the server does not know: a key, or the token of a local server. */

import { useState } from "preact/hooks";
import { Server, ServerError } from "../api/server.ts";
import { useApp } from "./context.ts";

export function SignIn() {
  const app = useApp();
  const [key, setKey] = useState("");
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      await new Server(() => key.trim()).overview();
      app.signIn(key.trim());
    } catch (refused) {
      const isUnknown = refused instanceof ServerError && refused.status === 401;
      setError(isUnknown ? "The server does not know that key." : (refused as Error).message);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <form onSubmit={(event) => void submit(event)}>
        <h1>Holdfast</h1>
        <p>
          Open the link that <code>holdfast serve</code> printed, or paste its token or an API key here. It stays in this
          browser.
        </p>
        <label for="key">Key or token</label>
        <input
          id="key"
          type="password"
          autocomplete="current-password"
          autofocus
          required
          value={key}
          aria-describedby="key-error"
          aria-invalid={error !== ""}
          onInput={(event) => setKey(event.currentTarget.value)}
        />
        <p id="key-error" class="problem" role="alert">
          {error}
        </p>
        <button type="submit" class="primary" disabled={isBusy || key.trim() === ""}>
          {isBusy ? "Signing in …" : "Sign in"}
        </button>
      </form>
    </main>
  );
}
