"""Find visible layout faults of a page: elements beyond the window's edge, over a neighbour, cut or broken."""

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
  for (const image of document.images) if (image.complete && !image.naturalWidth) faults.push(`broken: ${image.src}`);
  for (const node of document.body.querySelectorAll("*:not(svg *)")) {
    const style = getComputedStyle(node);
    const cuts = ["hidden", "clip"].includes(style.overflowX) && style.textOverflow !== "ellipsis" && inFlow(node);
    const isCut = cuts && node.scrollWidth > node.clientWidth + 1 && node.textContent.trim();
    if (isCut) faults.push(`cut: ${name(node)}`);
  }
  const shownPart = ({ left, top, right, bottom }, node) => {
    for (let above = node; above !== document.body; above = above.parentElement) {
      if (!clips(above)) continue;
      const box = above.getBoundingClientRect();
      [left, right] = [Math.max(left, box.left), Math.min(right, box.right)];
      [top, bottom] = [Math.max(top, box.top), Math.min(bottom, box.bottom)];
    }
    return { left, top, right, bottom };
  };
  const lines = [];
  const texts = document.createTreeWalker(document.querySelector("article") ?? document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    const isSeen = node.parentElement.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    if (!node.data.trim() || !isSeen) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) lines.push([shownPart(box, node.parentElement), node.data.trim()]);
  }
  lines.sort(([a], [b]) => a.top - b.top);
  lines.forEach(([a, one], index) => {
    for (let next = index + 1; next < lines.length && lines[next][0].top < a.bottom - 4; next++) {
      const [b, other] = lines[next];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - b.top;
      if (one !== other && across > 4 && down > 4) faults.push(`text over text: ${one} | ${other}`);
    }
  });
  return faults.map((fault) => fault.slice(0, 200));
})()"""


async def set_window(page: Page, width: int, scheme: str) -> None:
    """Make a page's window so wide, in a light or dark scheme."""
    await page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


async def faults(page: Page) -> list[Any]:
    """Return the elements beyond the window's edge, over a neighbour or other text, cut or broken, as words."""
    return await page.run(_FAULTS)
