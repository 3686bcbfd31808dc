"""Draws docs/images/page.png, a run's page: ``python .ci/docs/page_picture.py RUN``; needs Chromium and pillow."""

import asyncio
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from harbor_gym.report import write_page  # noqa: E402  # behind the root of the checkout
from tests.helpers.browser import browser  # noqa: E402

PICTURE = ROOT / "docs/images/page.png"
COLOURS = 64


async def draw(run: Path) -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        page = write_page([run], Path(folder) / "page.html").path
        async with browser(Path(folder) / "profile", width=1400, height=900) as tab:
            await tab.open(page.as_uri())
            await tab.wait_for("document.querySelector('.detail h2') !== null")
            await tab.screenshot(PICTURE)
    Image.open(PICTURE).convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)


asyncio.run(draw(Path(sys.argv[1])))
