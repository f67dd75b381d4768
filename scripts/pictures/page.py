"""Pictures of the status page in a real Chromium: from one section to another."""

from __future__ import annotations

import base64
import io
import re
from typing import Any, Final

from PIL import Image

from tests.admin.world import Browser

WIDTH: Final = 1200
_GAP: Final = 7  # pixels left free around what is cut out
_MEASURED_S: Final = 5
_BOX: Final = """
    const boxes = arguments[0].map(s => document.querySelector(s).getBoundingClientRect());
    const top = Math.min(...boxes.map(b => b.top)), bottom = Math.max(...boxes.map(b => b.bottom));
    return [top + scrollY, bottom + scrollY];
"""


def opened(browser: Browser, url: str, *, dark: bool = False) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    browser.driver.get("about:blank")  # else an address that differs in its fragment alone is not loaded again
    browser.open(url, WIDTH, dark=dark)


def measured(browser: Browser) -> None:
    """Wait until the page's rates are those of some seconds."""

    def is_so() -> bool:
        return any(int(seconds) >= _MEASURED_S for seconds in re.findall(r"last (\d+) s", browser.text("#tiles")))

    browser.until(is_so, "the page has measured rates")


def picture(browser: Browser, *parts: str, most_high: int = 1_400) -> Image.Image:
    """From the first of these selectors' elements to the last, `most_high` pixels at most; what is shown now."""
    top, bottom = browser.js(_BOX, list(parts))
    top, bottom = max(0, top - _GAP), bottom + _GAP
    clip: dict[str, Any] = {"x": 0, "y": top, "width": WIDTH, "height": min(most_high, bottom - top), "scale": 1}
    taken = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")
