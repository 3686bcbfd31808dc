"""What a person would see at once on a page: something beyond the window's edge, or over its neighbour."""

from typing import Any

from tests.helpers.browser import Page

WIDTHS = (1400, 800, 400)
SCHEMES = ("light", "dark")

_FAULTS = """(() => {
  const clips = (node) => ["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(node).overflowX);
  const name = (node) => `${node.localName}.${node.className.baseVal ?? node.className} ${node.textContent.trim()}`;
  const isClipped = (node) => {
    const above = node.parentElement;
    return above !== null && above !== document.body && (clips(above) || isClipped(above));
  };
  const isShown = (node) => {
    const box = node.getBoundingClientRect();
    return box.width > 0.5 && box.height > 0.5 && node.checkVisibility({ visibilityProperty: true });
  };
  const inFlow = (node) => {
    const style = getComputedStyle(node);
    return ["static", "relative"].includes(style.position) && style.display !== "inline" && isShown(node);
  };
  const faults = [];
  const width = document.documentElement.clientWidth;
  const whole = document.documentElement.scrollWidth;
  if (whole > width) faults.push(`the page scrolls sideways: ${whole} of ${width}`);
  for (const node of [document.body, ...document.body.querySelectorAll("*:not(svg *, script, template)")]) {
    const box = node.getBoundingClientRect();
    const isBeyond = box.right > width + 1 || box.left < -1;
    if (isBeyond && inFlow(node) && !isClipped(node)) faults.push(`beyond: ${name(node)}`);
    const children = [...node.children].filter(inFlow).map((child) => [child, child.getBoundingClientRect()]);
    children.forEach(([one, a], index) => children.slice(index + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 1) faults.push(`over its neighbour: ${name(one)} | ${name(other)}`);
    }));
  }
  return faults.map((fault) => fault.slice(0, 200));
})()"""


async def set_window(page: Page, width: int, scheme: str) -> None:
    """Make a page's window so wide, in a light or dark scheme."""
    await page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


async def faults(page: Page) -> list[Any]:
    """Return what is beyond the window's edge or over its neighbour, as words."""
    return await page.run(_FAULTS)
