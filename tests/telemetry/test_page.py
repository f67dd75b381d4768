"""The status page, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator

import aiohttp
import pytest
from selenium.webdriver.common.keys import Keys

from fairlead.core.capability import Capability
from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.core.peers import Load
from fairlead.core.pool import Endpoint
from fairlead.core.reported import EngineReport
from tests.telemetry.world import AdminPort, Browser, chromium

POLL_S = 1.0  # of the page
HOSTILE = "<img src=x onerror=alert(1)>&amp;\"'"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


def right(share: float) -> Capability:
    return Capability({language: (share,) * len(BUCKETS) for language in LANGUAGES})


@pytest.fixture
def admin() -> Iterator[AdminPort]:
    endpoints = [
        Endpoint("10.0.0.1:1", "small", capability=right(0.5), region="us-east", rtt_ms=2.0),
        Endpoint("10.0.0.2:1", "large", prefill_ms_per_token=0.2, decode_ms_per_token=30.0),
    ]
    with AdminPort(endpoints, {"auto": ["small", "large"]}) as running:
        yield running


def test_without_a_request_it_says_what_to_do(admin: AdminPort, browser: Browser) -> None:
    browser.open(admin.url)
    assert "No request has been decided yet" in browser.text("#first-steps")
    assert "curl http://127.0.0.1:8080/v1/chat/completions" in browser.text("#try")
    assert '"model":"auto"' in browser.text("#try")
    admin.decide()
    browser.until(lambda: browser.text("#first-steps") == "", "the first steps go with the first decision")


def test_it_shows_each_endpoint_with_load_cache_and_what_the_engine_says(admin: AdminPort, browser: Browser) -> None:
    endpoint = admin.shared.router.pool.by_address["10.0.0.1:1"]
    report = EngineReport(running_requests=3, waiting_requests=1, kv_usage=0.42, read_s=0.0, stale=False)
    admin.do(lambda: setattr(endpoint, "reported", report))
    for _ in range(2):
        admin.decide("small", text="long ago " * 500, x_session_id="s")
    admin.decide("small", code=503)
    browser.open(admin.url)
    row = browser.text("#endpoints tbody tr:first-child")
    for shown in ("10.0.0.1:1", "small, us-east", "up", "KV 42 %", "3 run, 1 wait", "2 ms", "1 with 5xx", "configured"):
        assert shown in row
    assert browser.text("#endpoints tbody tr:nth-child(2) td[data-label='Sent here']").strip() == "0"
    share = browser.text("#endpoints tbody tr:first-child td[data-label='Cache share']")
    assert 30 < int(share.split(" %")[0]) < 60  # the second prompt was cached, all but its tail
    assert browser.count("#endpoints tbody tr:first-child .bar .cached") == 1


def test_a_decision_shows_its_cost_as_parts_that_fill_the_bar(admin: AdminPort, browser: Browser) -> None:
    admin.decide("small", text="long ago " * 500)
    browser.open(admin.url)
    widths = browser.js(
        "return Object.fromEntries([...document.querySelectorAll('#decisions tbody .cost .bar span')]"
        ".map(part => [part.className, parseFloat(part.style.width)]))"
    )
    # Right half the time: half of the bar is the asking again. 2 ms of 5 s are too little to draw.
    assert widths["chance"] == pytest.approx(50, abs=0.1)
    assert sum(widths.values()) == pytest.approx(100, abs=0.3)
    assert set(widths) == {"prefill", "decode", "chance"}
    assert "÷ 0.5" in browser.text("#decisions .sum")
    assert browser.text("#decisions .why") == "least cost"


def test_the_penalty_of_a_retry_is_shown_on_the_model_that_was_wrong(admin: AdminPort, browser: Browser) -> None:
    admin.decide(x_fairlead_attempted_models="small")
    browser.open(admin.url)
    assert "wrong before: small" in browser.text("#decisions tbody tr")
    browser.js("document.querySelector('.expand').click()")
    browser.until(lambda: browser.count("#decisions .more li") == 2, "both candidates are shown")
    assert browser.text("#decisions .more li.chosen").startswith("1. 10.0.0.2:1")
    assert browser.text("#decisions .more li:nth-child(2) .penalty") == "× 1,000"
    assert browser.count("#decisions .more li.chosen .penalty") == 0


def test_a_policy_without_milliseconds_shows_its_score(browser: Browser) -> None:
    with AdminPort([Endpoint("10.0.0.1:1", "m")], {}, "least_request") as admin:
        admin.decide("m")
        browser.open(admin.url)
        assert "score 0" in browser.text("#decisions .cost")
        assert browser.text("#tiles .name") == "least_request"


def test_it_refreshes_itself_and_pauses_by_keyboard(admin: AdminPort, browser: Browser) -> None:
    browser.open(admin.url)
    admin.decide()
    browser.until(lambda: browser.count("#decisions tbody tr") == 1, "a decision comes by itself")
    browser.find("#pause").send_keys(Keys.SPACE)
    browser.until_text("#state", "paused")
    browser.js("performance.clearResourceTimings()")
    admin.decide()
    time.sleep(2 * POLL_S)  # long enough for a page that is not paused to ask again
    assert browser.js("return performance.getEntriesByType('resource').length") == 0
    browser.find("#pause").send_keys(Keys.ENTER)
    browser.until(lambda: browser.count("#decisions tbody tr") == 2, "it goes on")
    assert browser.text("#state") == "live"


def test_decisions_hold_still_under_the_pointer(admin: AdminPort, browser: Browser) -> None:
    admin.decide(request_id="first")
    browser.open(admin.url)
    browser.js("document.querySelector('.expand').focus()")
    admin.decide(request_id="second")
    browser.until_text("#decisions-held", "holds still")
    assert browser.count("#decisions tbody tr") == 1
    browser.find(".expand").send_keys(Keys.ENTER)
    browser.until(lambda: browser.count("#decisions .more") == 1, "the candidates open by keyboard")
    assert browser.find(".expand").get_attribute("aria-expanded") == "true"
    assert browser.text("#state") == "paused"


def test_names_are_shown_as_text_and_never_as_markup(browser: Browser) -> None:
    with AdminPort([Endpoint("10.0.0.1:1", HOSTILE, region=HOSTILE)], {HOSTILE + "route": [HOSTILE]}) as admin:
        admin.decide(HOSTILE, request_id=HOSTILE, x_fairlead_attempted_models=HOSTILE)
        browser.open(admin.url)
        assert browser.text("#endpoints tbody tr").count(HOSTILE) == 2
        assert browser.text("#decisions tbody tr").count(HOSTILE) == 2
        browser.find("#session-id").send_keys(HOSTILE, Keys.ENTER)
        browser.until_text("#session-answer", "knows no such session")
        assert browser.count("img") == 0
        assert [line for line in browser.complaints() if "/debug/sessions/" not in line] == []  # a 404 is one


def test_load_of_other_sidecars_counts(admin: AdminPort, browser: Browser) -> None:
    endpoint = admin.shared.router.pool.by_address["10.0.0.1:1"]
    others = Load(inflight_requests=5, inflight_prompt_tokens=900, pending_prefill_tokens=400, decoding_requests=3)
    admin.do(lambda: endpoint.told_of_others(others))
    browser.open(admin.url)
    load = browser.find("#endpoints tr:first-child td[data-label='In flight']")
    assert load.text.splitlines() == ["5", "3 decoding"]
    assert "5 of them by other sidecars" in str(load.get_attribute("title"))
    assert "40 ms" in browser.text("#endpoints tr:first-child td[data-label='Waiting prefill']")


def test_a_session_is_found(admin: AdminPort, browser: Browser) -> None:
    admin.decide("small", x_session_id="a/b c")
    browser.open(admin.url)
    browser.find("#session-id").send_keys("a/b c", Keys.ENTER)
    browser.until_text("#session-answer", "It lives at 10.0.0.1:1 (small), since 0 s.")


def test_it_says_when_the_sidecar_is_gone_and_when_it_is_back(admin: AdminPort, browser: Browser) -> None:
    admin.decide()
    browser.open(admin.url)
    admin.stop()
    browser.until_text("#banners", "The sidecar does not answer since")
    assert browser.text("#state") == "no answer"
    assert browser.count("#decisions tbody tr") == 1  # what was known stays
    admin.start()
    browser.until(lambda: browser.text("#state") == "live", "it goes on by itself")
    assert browser.text("#banners") == ""


def test_banners_tell_of_draining_of_ejected_endpoints_and_of_our_own_faults(
    admin: AdminPort, browser: Browser
) -> None:
    def trouble() -> None:
        admin.ready = False
        admin.shared.router.policy_failures = 3
        for endpoint in admin.shared.router.pool.endpoints:
            endpoint.probed(False, 0.0, failures_to_eject=1)

    admin.do(trouble)
    browser.open(admin.url)
    for sentence in ("draining", "No endpoint may be chosen", "failed 3 times (policy 3, stream 0)"):
        browser.until_text("#banners", sentence)
    assert browser.text("#endpoints tr:first-child td[data-label='Health']").startswith("down: probes fail")


def test_nothing_comes_from_elsewhere_and_the_browser_has_no_complaint(admin: AdminPort, browser: Browser) -> None:
    admin.decide(x_fairlead_attempted_models="small")
    browser.open(admin.url)
    browser.js("document.querySelector('.expand').click()")
    browser.until(lambda: browser.count("#decisions .more") == 1, "the candidates open")
    asked = browser.js("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert asked
    assert [name for name in asked if not name.startswith(admin.url)] == []
    assert browser.complaints() == []


async def test_its_security_policy_refuses_inline_scripts_and_other_hosts(admin: AdminPort) -> None:
    async with aiohttp.ClientSession(admin.url) as client, client.get("/") as response:
        policy = response.headers["Content-Security-Policy"]
        page = await response.text()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.count("<script") == page.count('<script type="module" src="page/status.js">') == 1


@pytest.mark.parametrize("width", [360, 768, 1200])
def test_it_fits_the_width_of(admin: AdminPort, browser: Browser, width: int) -> None:
    admin.decide(x_fairlead_attempted_models="small")
    browser.open(admin.url, width)
    browser.js("document.querySelector('.expand').click()")
    browser.until(lambda: browser.count("#decisions .more") == 1, "the candidates open")
    assert browser.js("return document.documentElement.scrollWidth") <= width


def test_it_is_dark_where_the_person_wants_dark(admin: AdminPort, browser: Browser) -> None:
    def brightness(dark: bool) -> int:
        browser.open(admin.url, dark=dark)
        colour = browser.js("return getComputedStyle(document.body).backgroundColor")
        return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))

    assert brightness(dark=True) < 200 < brightness(dark=False)


def test_every_column_is_explained_and_every_control_has_a_name(admin: AdminPort, browser: Browser) -> None:
    admin.decide()
    browser.open(admin.url)
    heads = browser.js("return [...document.querySelectorAll('th')].map(head => [head.innerText, head.title])")
    assert [name for name, title in heads if not title] == []
    nameless = "return [...document.querySelectorAll('button, input')].filter(e => !e.innerText && !e.labels?.length)"
    assert browser.js(f"{nameless}.length") == 0


def test_a_large_pool_is_shortened_and_can_be_filtered(browser: Browser) -> None:
    endpoints = [Endpoint(f"10.0.{n // 250}.{n % 250}:1", "m", region="eu" if n == 299 else "us") for n in range(300)]
    with AdminPort(endpoints, {}) as admin:
        browser.open(admin.url)
        assert browser.count("#endpoints tbody tr") == 200
        assert "300 of 300 may be chosen; 200 shown" in browser.text("#endpoints-note")
        browser.find("#filter").send_keys("eu")
        browser.until(lambda: browser.count("#endpoints tbody tr") == 1, "one row is left")
        assert "10.0.1.49:1" in browser.text("#endpoints tbody tr")
