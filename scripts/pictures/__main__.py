"""Takes every picture of docs/pictures/ anew: `python -m scripts.pictures`, some eight minutes.

Starts simulated engines, Redis, the sidecar, a real Envoy and a real Prometheus, puts load on them, and draws each
dashboard of deploy/grafana from what Prometheus answers; a panel that shows nothing and should is an error, after all
pictures. Chromium takes the status page in each of its states meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from PIL import Image
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import alert_is_present

from fairlead.tools.simulate.faults import Fault
from scripts.pictures import grafana
from scripts.pictures.load import Load
from scripts.pictures.page import measured, opened, picture
from scripts.pictures.png import stacked, write_png
from scripts.pictures.pool import LARGE_POOL, at_work, large
from tests.admin.world import Browser, chromium
from tests.stack.conftest import Stack
from tests.stack.prometheus import prometheus
from tests.waiting import until

PICTURES: Final = Path(__file__).parents[2] / "docs/pictures"
STORY: Final = "a-question-asked-again"
_SCRAPED_EVERY_S: Final = 2.0
_BEFORE_S: Final = 10.0  # of Prometheus's own, so that each rate has its samples from the beginning
# Shares of the time under load at which things happen.
_BUSY, _DRAINED, _TAKEN_BACK, _TROUBLE, _WELL, _BUSY_AGAIN = 0.25, 0.38, 0.56, 0.62, 0.74, 0.8
_TOP: Final = "header"
_DECISIONS: Final = "section[aria-labelledby=decisions-title]"


class Album:
    """Writes pictures as they are taken."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, name: str, taken: Image.Image) -> None:
        size = write_png(taken, self._folder / f"{name}.png")
        print(f"{name}.png: {taken.width} x {taken.height}, {size:,} bytes", flush=True)


class Views:
    """The states of the status page. Each waits until the page shows that state."""

    def __init__(self, browser: Browser, stack: Stack, album: Album) -> None:
        self._browser, self._stack, self._album = browser, stack, album

    def before(self) -> None:
        opened(self._browser, self._url())
        self._browser.until_text("#first-steps", "No request has been decided yet")
        self._album.add("status-first", picture(self._browser, _TOP, "#first-steps"))

    def at_work(self) -> None:
        opened(self._browser, self._url())
        measured(self._browser)

    def busy(self) -> None:
        """On the page as `at_work` left it."""
        self._browser.until_text("#queues", "batch")
        above = picture(self._browser, _TOP, "#endpoints")
        below = picture(self._browser, _DECISIONS, most_high=480)
        self._album.add("status", stacked(above, below))

    def dark(self) -> None:
        opened(self._browser, self._url(), dark=True)
        self._browser.until_text("#decisions", "least cost")
        self._browser.until_text("#calibration", "first token")
        self._album.add("status-dark", picture(self._browser, "section[aria-labelledby=speeds-title]", "#decisions"))

    def trouble(self, address: str) -> None:
        opened(self._browser, self._url())
        self._browser.until_text("#endpoints tbody tr:first-child", "down")
        measured(self._browser)
        assert address in self._browser.text("#endpoints tbody tr:first-child"), "trouble comes first"
        self._album.add("status-trouble", picture(self._browser, _TOP, "#endpoints"))

    def story(self) -> None:
        opened(self._browser, f"{self._url()}#request={STORY}")
        self._browser.until_text("#request-answer", "2 decisions, 2 ends")
        self._album.add("story", picture(self._browser, "section[aria-labelledby=request-title]"))

    def drained(self, address: str) -> None:
        browser = self._browser
        opened(browser, self._url())
        browser.find("#token").send_keys(self._stack.token_path.read_text(encoding="utf-8"))
        self._details(address)
        browser.find("#endpoints .act button").send_keys(Keys.ENTER)
        browser.until(lambda: alert_is_present()(browser.driver), "it asks before it drains")
        browser.driver.switch_to.alert.accept()
        browser.until_text("#endpoints .act button", f"take {address} back")
        browser.until_text("#moves-note", "draining")
        browser.until_text("#moves-section", "copy")
        parts = ("section[aria-labelledby=endpoints-title]", "#moves-section", "#actions-section")
        self._album.add("status-drained", stacked(*[picture(browser, part) for part in parts]))

    def taken_back(self, address: str) -> None:
        """On the page as `drained` left it, with its token."""
        self._browser.find("#endpoints .act button").send_keys(Keys.ENTER)
        self._browser.until_text("#endpoints .act button", f"drain {address}")

    def large(self) -> None:
        opened(self._browser, self._url())
        self._browser.until(lambda: self._browser.count("#endpoints tr.group") > 0, "the pool is grouped")
        measured(self._browser)
        self._album.add("large-pool", picture(self._browser, _TOP, "#endpoints"))

    def _details(self, address: str) -> None:
        rows = "[...document.querySelectorAll('#endpoints tbody tr')].find(r => r.innerText.includes(arguments[0]))"
        self._browser.js(f"{rows}.querySelector('.details').click()", address)
        self._browser.until_text("#endpoints .act button", f"drain {address}")

    def _url(self) -> str:
        return f"{self._stack.admin_url}/"


async def work(browser: Browser, album: Album, folder: Path, seconds: float, seed: int) -> Sequence[str]:
    """The pool under load for `seconds`, its page in each state, and all dashboards at the end, with their faults."""
    async with at_work(folder) as pool, prometheus(pool.stack, folder, interval=f"{_SCRAPED_EVERY_S:g}s") as scraping:
        views, load = Views(browser, pool.stack, album), Load(pool.stack, seed)
        await asyncio.to_thread(views.before)
        await asyncio.sleep(_BEFORE_S)
        begun_s = time.time()

        async def at(share: float, look: Callable[[], None]) -> None:
            await asyncio.sleep(begun_s + share * seconds - time.time())
            await asyncio.to_thread(look)

        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(load.run())
            await at(_BUSY, views.at_work)
            tasks.create_task(load.batch())
            await asyncio.to_thread(views.busy)
            await asyncio.to_thread(views.dark)
            drained, failing = pool.stack.engines[0].address, pool.stack.engines[4]
            pool.lists(draining=True)
            await at(_DRAINED, partial(views.drained, drained))
            await at(_TAKEN_BACK, partial(views.taken_back, drained))
            pool.lists(draining=False)
            await load.story(STORY)
            await asyncio.to_thread(views.story)
            await at(_TROUBLE, lambda: None)
            pool.judge.says = "I cannot say."
            failing.faults.set(Fault("down"))
            await asyncio.to_thread(views.trouble, failing.address)
            await at(_WELL, lambda: None)
            pool.judge.says = None
            failing.faults.set(None)
            await at(_BUSY_AGAIN, lambda: None)
            tasks.create_task(load.batch())
            await at(1.0, lambda: None)
            running.cancel()
        about = f"{seconds / 60:g} minutes of mixed load on six simulated engines"
        drawn, faults = await grafana.dashboards(
            scraping, start_s=begun_s, end_s=begun_s + seconds, scraped_every_s=_SCRAPED_EVERY_S, about=about
        )
        for name, taken in drawn.items():
            album.add(f"dashboards/{name}", taken)
        return faults


async def many(browser: Browser, album: Album, folder: Path, seed: int) -> None:
    """A pool of 200, with a few engines down."""
    async with large(folder) as stack:
        views = Views(browser, stack, album)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(Load(stack, seed).sessions())
            failing = [stack.engines[number] for number in range(7, LARGE_POOL, 40)]
            for each in failing:
                each.faults.set(Fault("down"))

            async def down() -> bool:
                return not any([await stack.metric("fairlead_endpoint_up", endpoint=each.address) for each in failing])

            await until(down, "some engines are down", within_s=180.0)
            await asyncio.to_thread(views.large)
            running.cancel()


async def main(out: Path, seconds: float, seed: int, only: str | None) -> Sequence[str]:
    """The faults of dashboards."""
    faults: Sequence[str] = ()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("work", "large"):
            (folder / part).mkdir()
        with chromium(folder / "profile") as browser:
            album = Album(out)
            if only != "large":
                faults = await work(browser, album, folder / "work", seconds, seed)
            if only != "work":
                await many(browser, album, folder / "large", seed)
    return faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m scripts.pictures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=240.0, help="under load (%(default)g)")
    parser.add_argument("--seed", type=int, default=1, help="of what is asked (%(default)s)")
    parser.add_argument("--only", choices=("work", "large"), help="the six engines at work, or the large pool")
    parser.add_argument("--out", type=Path, default=PICTURES, help="the folder for them (%(default)s)")
    arguments = parser.parse_args()
    found = asyncio.run(main(arguments.out, arguments.seconds, arguments.seed, arguments.only))
    if found:
        sys.exit("pictures: these panels are at fault\n" + "\n".join(found))
