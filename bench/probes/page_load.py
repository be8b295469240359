"""The first load of the page by a browser that has never seen it: how many bytes it takes, and when it is of use.

Bytes are those of the page's own files as they came, packed; what it then asks the server for is the person's own. It
is of use when the box to write in has been painted.
"""

from typing import Any

from playwright.async_api import Page

from bench import page
from bench.place import Place
from bench.served import Served

WATCH = """
  const look = () => {
    if (globalThis.usefulAt !== undefined || !document.querySelector("#composer")) return;
    watching.disconnect();
    globalThis.usefulAt = null;
    const painted = new MessageChannel();
    painted.port1.onmessage = () => {
      globalThis.usefulAt = performance.now();
    };
    requestAnimationFrame(() => painted.port2.postMessage(null));
  };
  const watching = new MutationObserver(look);
  watching.observe(document, { childList: true, subtree: true });
"""

FOUND = """() => {
  const isOwn = (entry) => !new URL(entry.name).pathname.startsWith("/v1/");
  const files = performance.getEntriesByType("resource").filter(isOwn);
  const [document] = performance.getEntriesByType("navigation");
  return {
    bytes: [document, ...files].reduce((sum, entry) => sum + entry.encodedBodySize, 0),
    usefulAt: globalThis.usefulAt,
  };
}"""


async def measure(place: Place) -> dict[str, float]:
    """Nothing where there is no browser."""
    path = page.chromium()
    if path is None:
        return {}
    async with page.server(place, place.model_url) as server, page.tab(place, path) as tab:
        found = await _load(tab, server)
    return {"page_bytes": found["bytes"] / 1000, "page_useful": found["usefulAt"]}


async def _load(tab: Page, server: Served) -> dict[str, Any]:
    await tab.add_init_script(WATCH)
    await tab.goto(f"{server.url}/#token={server.token}")
    await tab.wait_for_function("typeof globalThis.usefulAt === 'number'")
    found: dict[str, Any] = await tab.evaluate(FOUND)
    return found
