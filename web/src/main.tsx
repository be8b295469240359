import { render } from "preact";
import { App } from "./model/app.ts";
import { AppContext } from "./view/context.ts";
import { Shell } from "./view/shell.tsx";
import "./style/page.css";

const app = new App();
app.start();
render(
  <AppContext.Provider value={app}>
    <Shell />
  </AppContext.Provider>,
  document.getElementById("page")!,
);
