/** The sign-in form: a key, or the token of a local server. */

import { useState } from "preact/hooks";
import { Server, ServerError } from "../api/server.ts";
import type { IdentityView } from "../api/wire.ts";
import { useApp } from "./context.ts";
import { Box } from "./dialogs.tsx";
import { visibleLine } from "./escapes.ts";

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

/** Asks before a link signs in with another key. Closing the question is a no. */
export function OtherKey() {
  const app = useApp();
  const offer = app.offered.value;
  if (offer === null) return null;
  const stay = (): void => app.takeOffer(false);
  return (
    <Box title="Sign in with another key?" left={stay}>
      <p>
        A link wants to sign this browser in with another key. If you did not ask for such a link, stay: what you write and
        allow afterwards would be seen by whoever has that key.
      </p>
      <dl class="keys-compared">
        <dt>You are</dt>
        <dd>{wordsOf(offer.now)}</dd>
        <dt>The link’s key is for</dt>
        <dd>{wordsOf(offer.then)}</dd>
      </dl>
      <div class="buttons">
        <button type="button" class="primary" onClick={stay}>
          Stay as I am
        </button>
        <button type="button" class="danger" onClick={() => app.takeOffer(true)}>
          Use the link’s key
        </button>
      </div>
    </Box>
  );
}

function wordsOf(identity: IdentityView | null): string {
  if (identity === null) return "unknown: the server can’t be asked now";
  const key = identity.key_id ? ` with the key ${visibleLine(identity.key_id)}` : "";
  return `${visibleLine(identity.owner)} (${identity.role})${key}`;
}
