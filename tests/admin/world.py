"""The admin port on a thread of its own, over a router without engines, and a real browser to look at it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar

import pytest
from aiohttp import web
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from fairlead.admin.app import admin_app
from fairlead.admin.token import AdminToken
from fairlead.config import PolicyConfig
from fairlead.core.endpoint import Endpoint
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.policies import build_policy
from fairlead.processes import free_ports
from tests.extproc.world import (
    CONFIG,
    Conversation,
    chat,
    request_body,
    request_headers,
    response_headers,
    response_trailers,
    services_around,
)

SEEN_WITHIN_S = 60.0
INSTALL = "run .ci/install-system-parts (or: apt-get install chromium chromium-driver)"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
T = TypeVar("T")


class AdminPort:
    """`with AdminPort(endpoints, routes) as admin:` serves the pages; change what they show inside `admin.do`."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        routes: Mapping[str, Sequence[str]],
        policy: str = "fairlead",
        token_file: Path | None = None,
    ) -> None:
        router = Router(Pool(endpoints, routes), build_policy(policy, {}), fallbacks=2, rng=Random(0))
        listen = CONFIG.listen.model_copy(update={"admin_token_file": None if token_file is None else str(token_file)})
        config = CONFIG.model_copy(update={"policy": PolicyConfig(name=policy), "listen": listen})
        self._token = AdminToken(token_file)
        self.services = services_around(router, config=config, state="ready")
        self._port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self._port}/"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self) -> None:
        self._run(self._start())

    def stop(self) -> None:
        """The port closes, as when the sidecar ends."""
        if self._runner is not None:
            self._run(self._runner.cleanup())
            self._runner = None

    def do(self, change: Callable[[], T]) -> T:
        """Run `change` where the pages are made, so that they never see half of it."""

        async def changed() -> T:
            return change()

        return self._run(changed())

    def decide(
        self, model: str = "auto", *, request_id: str = "id-1", code: int = 200, text: str = "hello", **headers: str
    ) -> None:
        """A request that is decided and answered with `code`; header names have _ for -."""
        extra = {"x-request-id": request_id} | {name.replace("_", "-"): value for name, value in headers.items()}

        def one() -> None:
            body = chat(model, messages=[{"role": "user", "content": text}])
            conversation = Conversation(self.services)
            conversation.say(request_headers(extra=extra), request_body(body))
            conversation.say(response_headers(code), response_trailers())

        self.do(one)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=SEEN_WITHIN_S)

    async def _start(self) -> None:
        self._runner = web.AppRunner(admin_app(self.services, token=self._token), access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()


class Browser:
    """What a person does with the page: open it, wait until it shows something, click, type."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str, width: int = 1200, *, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.complaints()  # forget what pages before have said
        self.driver.get(url)
        self.until(lambda: self.text("#state") != "connecting", "the page has asked for its numbers")

    def until(self, condition: Callable[[], object], what: str) -> None:
        WebDriverWait(self.driver, SEEN_WITHIN_S, poll_frequency=0.05).until(
            lambda _: condition(), f"not so within {SEEN_WITHIN_S:g} s: {what}"
        )

    def until_text(self, selector: str, text: str) -> None:
        self.until(lambda: text in self.text(selector), f"{selector} shows {text!r}")

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """What can be read of all elements that match, at one moment: rows come and go between two questions."""
        seen = "[...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility())"
        return str(self.js(f"return {seen}.map(e => e.innerText).join('|')", selector))

    def count(self, selector: str) -> int:
        return int(self.js("return document.querySelectorAll(arguments[0]).length", selector))

    def js(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """Errors on the browser's console: scripts that fail, parts that the security policy refused."""
        log = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in log if entry["level"] == "SEVERE"]


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A headless Chromium of this machine; fails with what to install where there is none."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.fail(f"the status page is tested in chromium, which is missing: {INSTALL}")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "127.0.0.1,localhost")
        running = webdriver.Chrome(options=options, service=Service(driver))
        try:
            yield Browser(running)
        finally:
            running.quit()
