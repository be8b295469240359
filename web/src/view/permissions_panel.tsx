/** Permissions granted for always or for the open session: by whom, when and where, with a button that revokes each. */

import { useEffect, useState } from "preact/hooks";
import type { Permission } from "../api/wire.ts";
import { useApp } from "./context.ts";
import { dialog, Box } from "./dialogs.tsx";
import { visible, visibleLine } from "./escapes.ts";
import { exactly, moment } from "./words.ts";

export function PermissionsPanel() {
  const app = useApp();
  const sessionId = app.open.value?.id ?? null;
  const [found, setFound] = useState<Permission[] | null>(null);
  const [problem, setProblem] = useState("");
  const look = async (): Promise<void> => {
    try {
      const [always, here] = await Promise.all([
        app.server.permissions(),
        sessionId === null ? [] : app.server.permissionsOf(sessionId),
      ]);
      setFound([...here.filter((one) => one.scope === "session"), ...always]);
      setProblem("");
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  useEffect(() => void look(), [sessionId]);
  const revoke = async (permission: Permission): Promise<void> => {
    await app.attempt(() => app.server.revoke(permission));
    await look();
  };
  const close = (): void => {
    dialog.value = null;
  };
  const here = found?.filter((one) => one.scope === "session") ?? [];
  const always = found?.filter((one) => one.scope !== "session") ?? [];
  return (
    <Box title="Permissions" left={close} isClosable>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {here.length > 0 && (
        <section aria-label="In this session">
          <h3>In this session</h3>
          <Rules permissions={here} revoke={revoke} />
        </section>
      )}
      <section aria-label="Always">
        <h3>Always</h3>
        {found && always.length === 0 && <p class="aside">Nothing is allowed permanently.</p>}
        <Rules permissions={always} revoke={revoke} />
      </section>
      <p class="aside">A revoked permission no longer holds: the next such call asks again.</p>
    </Box>
  );
}

function Rules({ permissions, revoke }: { permissions: Permission[]; revoke: (permission: Permission) => Promise<void> }) {
  return (
    <ul class="permissions">
      {permissions.map((permission) => (
        <Rule key={permission.id} permission={permission} revoke={revoke} />
      ))}
    </ul>
  );
}

function Rule({ permission, revoke }: { permission: Permission; revoke: (permission: Permission) => Promise<void> }) {
  const [isBusy, setBusy] = useState(false);
  const run = async (): Promise<void> => {
    setBusy(true);
    await revoke(permission);
    setBusy(false);
  };
  return (
    <li>
      <div>
        <code dir="ltr">{visible(permission.rule)}</code>
        <p class="aside">
          {placeOf(permission)}
          {permission.origins.map((origin, index) => (
            <span key={index}>
              {" · "}
              {origin.granted_by && `by ${visibleLine(origin.granted_by)}, `}
              {origin.granted_at !== null && <time title={exactly(origin.granted_at)}>{moment(origin.granted_at)}</time>}
              {origin.session_id !== null && permission.scope !== "session" && (
                <>
                  {", in "}
                  <a href={`#/s/${encodeURIComponent(origin.session_id)}`} onClick={() => (dialog.value = null)}>
                    a session
                  </a>
                </>
              )}
            </span>
          ))}
        </p>
      </div>
      <button type="button" disabled={isBusy} aria-label={`Revoke ${visibleLine(permission.rule)}`} onClick={() => void run()}>
        Revoke
      </button>
    </li>
  );
}

export function placeOf(permission: Pick<Permission, "scope" | "directory">): string {
  if (permission.scope === "everywhere") return "wherever a session works";
  return permission.scope === "session" ? "in this session" : `in ${visibleLine(permission.directory ?? "")}`;
}
