import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { App } from "../model/app.ts";

export const AppContext = createContext<App | null>(null);

export function useApp(): App {
  const app = useContext(AppContext);
  if (!app) throw new Error("There is no app around this.");
  return app;
}
