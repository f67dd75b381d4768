"""The status page, in a real browser."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import alert_is_present

from fairlead.admission.rates import Rate, RateRules
from fairlead.admission.waiting import Waiting
from fairlead.cascade.settings import CascadeRouteSettings
from fairlead.core.capability import Capability
from fairlead.core.endpoint import Speed
from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from fairlead.core.language import LANGUAGES
from fairlead.core.ledger import Ticket
from fairlead.core.lengths import BUCKETS
from fairlead.core.load import Load
from fairlead.core.reported import EngineIdentity, EngineReport
from fairlead.discovery import SourceStatus
from fairlead.migration.mover import CopyUnderWay
from tests.admin.world import AdminPort, Browser, chromium
from tests.core.world import make_endpoint
from tests.tuning.world import tuned

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
        make_endpoint("10.0.0.1:1", "small", capability=right(0.5), region="us-east", rtt_ms=2.0),
        make_endpoint("10.0.0.2:1", "large", prefill_ms_per_token=0.2, decode_ms_per_token=30.0),
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
    endpoint = admin.services.router.pool.by_address["10.0.0.1:1"]
    report = EngineReport(running_requests=3, waiting_requests=1, kv_usage=0.42, read_s=0.0, stale=False)
    admin.do(lambda: setattr(endpoint, "report", report))
    for _ in range(2):
        admin.decide("small", text="long ago " * 500, x_session_id="s")
    admin.decide("small", code=503)
    browser.open(admin.url)
    row = browser.text("#endpoints tbody tr:first-child")
    for shown in ("10.0.0.1:1", "small, us-east", "up", "KV 42 %", "3 run, 1 wait", "2 ms", "1 with 5xx", "default"):
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
    assert "already wrong: small" in browser.text("#decisions tbody tr")
    browser.js("document.querySelector('.expand').click()")
    browser.until(lambda: browser.count("#decisions .more li") == 2, "both candidates are shown")
    assert browser.text("#decisions .more li.chosen").startswith("1. 10.0.0.2:1")
    assert browser.text("#decisions .more li:nth-child(2) .penalty") == "× 1M"
    assert browser.count("#decisions .more li.chosen .penalty") == 0


def test_a_policy_without_milliseconds_shows_its_score(browser: Browser) -> None:
    with AdminPort([make_endpoint("10.0.0.1:1", "m")], {}, "least_request") as admin:
        admin.decide("m")
        browser.open(admin.url)
        assert "score 0" in browser.text("#decisions .cost")
        assert browser.text("#tiles .name") == "least_request"


def test_it_refreshes_itself_and_pauses_by_keyboard(admin: AdminPort, browser: Browser) -> None:
    def asked() -> int:
        return int(browser.js("return performance.getEntriesByType('resource').length"))

    def is_quiet() -> bool:
        before = asked()
        time.sleep(POLL_S)
        return asked() == before

    browser.open(admin.url)
    admin.decide()
    browser.until(lambda: browser.count("#decisions tbody tr") == 1, "a decision comes by itself")
    browser.find("#pause").send_keys(Keys.SPACE)
    browser.until_text("#state", "paused")
    browser.until(is_quiet, "what it had asked before is answered")
    browser.js("performance.clearResourceTimings()")
    admin.decide()
    time.sleep(2 * POLL_S)  # long enough for a page that is not paused to ask again
    assert asked() == 0
    browser.find("#pause").send_keys(Keys.ENTER)
    browser.until(lambda: browser.count("#decisions tbody tr") == 2, "it goes on")
    assert browser.text("#state") == "live"


def test_decisions_hold_still_under_the_pointer(admin: AdminPort, browser: Browser) -> None:
    admin.decide(request_id="first")
    browser.open(admin.url)
    browser.js("document.querySelector('.expand').focus()")
    admin.decide(request_id="second")
    browser.until_text("#decisions-held", "is held")
    assert browser.count("#decisions tbody tr") == 1
    browser.find(".expand").send_keys(Keys.ENTER)
    browser.until(lambda: browser.count("#decisions .more") == 1, "the candidates open by keyboard")
    assert browser.find(".expand").get_attribute("aria-expanded") == "true"
    assert browser.text("#state") == "paused"


def test_names_are_shown_as_text_and_never_as_markup(browser: Browser) -> None:
    with AdminPort([make_endpoint("10.0.0.1:1", HOSTILE, region=HOSTILE)], {HOSTILE + "route": [HOSTILE]}) as admin:
        admin.decide(HOSTILE, request_id=HOSTILE, x_fairlead_attempted_models=HOSTILE)
        browser.open(admin.url)
        assert browser.text("#endpoints tbody tr").count(HOSTILE) == 2
        assert browser.text("#decisions tbody tr").count(HOSTILE) == 2
        browser.find("#session-id").send_keys(HOSTILE, Keys.ENTER)
        browser.until_text("#session-answer", "knows no such session")
        browser.find("#request-id").send_keys(HOSTILE, Keys.ENTER)
        browser.until_text("#story", HOSTILE)
        assert browser.count("img") == 0
        assert [line for line in browser.complaints() if "/debug/sessions/" not in line] == []  # a 404 is one


def test_load_of_other_sidecars_counts(admin: AdminPort, browser: Browser) -> None:
    endpoint = admin.services.router.pool.by_address["10.0.0.1:1"]
    others = Load(inflight_requests=5, inflight_prompt_tokens=900, pending_prefill_tokens=400, decoding_requests=3)
    admin.do(lambda: endpoint.peers_reported(others, 0.0))
    browser.open(admin.url)
    load = browser.find("#endpoints tr:first-child td[data-label='In flight']")
    assert load.text.splitlines() == ["5", "3 decoding"]
    assert "5 of them by other sidecars" in str(load.get_attribute("title"))
    assert "40 ms" in browser.text("#endpoints tr:first-child td[data-label='Waiting prefill']")


def test_those_whose_prompt_is_computed_elsewhere_are_told_from_those_that_are_there(
    admin: AdminPort, browser: Browser
) -> None:
    endpoint = admin.services.router.pool.by_address["10.0.0.1:1"]
    admin.do(lambda: endpoint.peers_reported(Load(inflight_requests=6, decoding_requests=1, awaited_requests=3), 0.0))
    browser.open(admin.url)
    load = browser.find("#endpoints tr:first-child td[data-label='In flight']")
    assert load.text.splitlines() == ["6", "1 decoding, 3 to come"]
    assert "2 in prefill, 3 whose prompt another endpoint still computes" in str(load.get_attribute("title"))


def test_a_session_is_found(admin: AdminPort, browser: Browser) -> None:
    admin.decide("small", x_session_id="a/b c")
    browser.open(admin.url)
    browser.find("#session-id").send_keys("a/b c", Keys.ENTER)
    browser.until_text("#session-answer", "It is bound to 10.0.0.1:1 (small), since 0 s.")


def test_a_request_is_found_by_its_id_with_all_its_attempts_and_how_each_ended(
    admin: AdminPort, browser: Browser
) -> None:
    admin.decide(request_id="a/b c")
    admin.decide(request_id="a/b c", x_fairlead_attempted_models="large", code=503)
    browser.open(admin.url)
    browser.find("#request-id").send_keys("a/b c", Keys.ENTER)
    browser.until_text("#request-answer", "2 decisions, 2 ends.")
    steps = browser.text("#story > li").split("|")
    assert len(steps) == 4
    assert "Sent to 10.0.0.2:1 (large, asked as auto)" in steps[0]
    assert "10.0.0.2:1 answered 200" in steps[1]
    assert "already wrong: large" in steps[2]
    assert "10.0.0.1:1 answered 503" in steps[3]
    assert browser.count("#story > li:first-child ol > li") == 2  # both candidates, with their cost
    assert browser.js("return document.activeElement.id") == "story"  # a screen reader goes on there


def test_a_refused_request_is_found_with_the_sentence_it_got(admin: AdminPort, browser: Browser) -> None:
    admin.decide("nobody", request_id="lost")
    browser.open(f"{admin.url}#request=lost")
    browser.until_text("#story", "Fairlead answered 404 itself")
    assert "neither served by this pool nor a route" in browser.text("#story")
    browser.find("#request-id").clear()
    browser.find("#request-id").send_keys("never", Keys.ENTER)
    browser.until_text("#request-answer", "has this x-request-id")
    assert browser.text("#story") == ""


def test_a_split_request_shows_both_endpoints_and_the_terms_of_both_ways(browser: Browser) -> None:
    same: dict[str, Any] = {"kv_connector": "proxy", "transfer_ms_per_token": 0.001}
    endpoints = [
        make_endpoint("10.0.0.1:1", "small", role="prefill", **same),
        make_endpoint("10.0.0.2:1", "small", role="decode", inflight_requests=9, decoding_requests=9, **same),
    ]
    with AdminPort(endpoints, {}) as admin:
        admin.decide("small", text="long ago " * 500)
        browser.open(admin.url)
        assert "prompt at 10.0.0.1:1" in browser.text("#decisions tbody tr:first-child")
        assert "prefill only" in browser.text("#endpoints tbody tr:first-child")
        browser.js("document.querySelector('.expand').click()")
        browser.until(lambda: browser.count("#decisions .ways > li") == 2, "both ways are shown")
        alone, split = (browser.text(f"#decisions .ways > li:nth-child({n})") for n in (1, 2))
        assert "stalls others" in alone
        assert "10.0.0.1:1 → 10.0.0.2:1" in split
        assert "transfer" in split
        assert browser.count("#decisions .ways > li.chosen") == 1
        browser.js("document.querySelector('#decisions .more button').click()")
        browser.until_text("#story", "10.0.0.1:1 → 10.0.0.2:1")


def test_the_story_of_a_decision_opens_from_its_row(admin: AdminPort, browser: Browser) -> None:
    admin.decide(request_id="mine")
    browser.open(admin.url)
    browser.js("document.querySelector('.expand').click()")
    browser.until(lambda: browser.count("#decisions .more button") == 1, "the row is open")
    browser.js("document.querySelector('#decisions .more button').click()")
    browser.until_text("#story", "answered 200")
    assert browser.find("#request-id").get_attribute("value") == "mine"


def test_it_says_when_the_sidecar_is_gone_and_when_it_is_back(admin: AdminPort, browser: Browser) -> None:
    admin.decide()
    browser.open(admin.url)
    admin.stop()
    browser.until_text("#banners", "The sidecar has not answered since")
    assert browser.text("#state") == "no answer"
    assert browser.count("#decisions tbody tr") == 1  # what was known stays
    admin.start()
    browser.until(lambda: browser.text("#state") == "live", "it goes on by itself")
    assert browser.text("#banners") == ""


def test_banners_tell_of_draining_of_ejected_endpoints_and_of_our_own_faults(
    admin: AdminPort, browser: Browser
) -> None:
    def trouble() -> None:
        admin.services.state = "draining"
        admin.services.router.policy_failures = 3
        for endpoint in admin.services.router.pool.endpoints:
            endpoint.health.probed(False, 0.0, failures_to_eject=1)

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


@pytest.mark.parametrize("width", [360, 768, 830, 950, 1200])
def test_it_fits_the_width_of(admin: AdminPort, browser: Browser, width: int) -> None:
    admin.decide(x_fairlead_attempted_models="small")
    browser.open(admin.url, width)
    browser.js("document.querySelector('.expand').click()")
    browser.until(lambda: browser.count("#decisions .more") == 1, "the candidates open")
    assert browser.js("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1000, 1200])
def test_the_address_of_a_decision_stands_in_one_line_with_its_port(
    admin: AdminPort, browser: Browser, width: int
) -> None:
    admin.decide(x_fairlead_attempted_models=",".join(["small"] * 12))
    browser.open(admin.url, width)
    browser.until(lambda: browser.count("#decisions tbody tr") > 0, "a decision is shown")
    lines = browser.js(
        "const cell = document.querySelector('#decisions td:nth-child(3)'), range = document.createRange();"
        "cell.firstChild.textContent = '10.244.13.87:31637';"
        "range.selectNodeContents(cell.firstChild); return range.getClientRects().length"
    )
    assert lines == 1
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
    nameless = (
        "return [...document.querySelectorAll('button, input, select')].filter(e => !e.innerText && !e.labels?.length)"
    )
    assert browser.js(f"{nameless}.length") == 0


@pytest.fixture(scope="module")
def large() -> Iterator[AdminPort]:
    """1,000 endpoints of two models in three regions, some of them in trouble."""
    regions = ("eu", "us", "ap")
    endpoints = [make_endpoint(f"10.0.{n // 250}.{n % 250}:1", f"m{n % 2}", region=regions[n % 3]) for n in range(1000)]
    endpoints[7].identified(EngineIdentity("0.32.0", ("m1", "sql-lora"), adapters=("sql-lora",)))
    for endpoint in endpoints[100:160:6]:  # ten of m0 in us
        endpoint.health.probed(False, 0.0, failures_to_eject=1)
    endpoints[13].health.withhold("half")
    with AdminPort(endpoints, {}) as running:
        yield running


def test_a_large_pool_is_grouped_by_model_and_region_with_trouble_first(large: AdminPort, browser: Browser) -> None:
    browser.open(large.url)
    assert browser.count("#endpoints tr.group") == 6
    first = browser.text("#endpoints tbody tr:first-child")
    assert all(shown in first for shown in ("m0", "us, 166 endpoints", "156 of 166 up", "10 in trouble"))
    assert "989 of 1,000 may be chosen; 11 in trouble; 6 shown" in browser.text("#endpoints-note")
    in_sight = browser.text("#endpoints tbody tr:not(.group) td[data-label='Health']").split("|")
    assert [health.splitlines()[0] for health in in_sight] == [
        *5 * ["down: probes fail"],
        "does only the prefill or the decoding of a request",
    ]


def test_a_group_opens_by_keyboard_and_its_rows_are_bounded(large: AdminPort, browser: Browser) -> None:
    browser.open(large.url)
    browser.js("document.querySelector('#endpoints tr.group button').focus()")
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.until(lambda: browser.count("#endpoints tbody tr") > 150, "the group is open")
    assert browser.count("#endpoints tbody tr") <= 200
    assert browser.find("#endpoints tr.group button").get_attribute("aria-expanded") == "true"
    assert browser.text("#endpoints tbody tr:nth-child(2) td[data-label='Health']").startswith("down")


def test_a_large_pool_is_searched_by_adapter_and_by_trouble(large: AdminPort, browser: Browser) -> None:
    browser.open(large.url)
    browser.find("#filter").send_keys("sql-lora")
    browser.until(lambda: browser.count("#endpoints tbody tr") == 2, "a group of one is left")
    assert "10.0.0.7:1" in browser.text("#endpoints tbody tr:nth-child(2)")
    browser.find("#filter").clear()
    browser.find("#filter").send_keys("down")
    browser.until(lambda: browser.count("#endpoints tbody tr") == 11, "all ten are shown")
    assert "10 found" in browser.text("#endpoints-note")


def test_a_large_pool_is_sorted_as_asked(large: AdminPort, browser: Browser) -> None:
    busy = large.services.router.pool.by_address["10.0.0.4:1"]
    large.do(lambda: busy.peers_reported(Load(5, 900, 400, 3), 0.0))
    browser.open(large.url)
    browser.find("#filter").send_keys("m0, us")
    browser.find("#order").send_keys("in flight")
    browser.until_text("#endpoints tbody tr:nth-child(2) td[data-label='In flight']", "5")


def test_a_thousand_endpoints_are_drawn_in_less_than_the_page_has_between_two_answers(
    large: AdminPort, browser: Browser
) -> None:
    browser.open(large.url)
    browser.find("#filter").send_keys("10.")
    browser.until(lambda: browser.count("#endpoints tbody tr") == 200, "as many as are shown at most")
    took_ms = browser.js(
        "const times = []; for (let n = 0; n < 5; n++) { const begun = performance.now();"
        " document.dispatchEvent(new Event('redraw')); times.push(performance.now() - begun); }"
        " return Math.min(...times)"
    )
    assert took_ms < 1000  # 50 ms on a busy machine of two cores; it must not take the page's second


def test_details_say_what_hover_texts_say(browser: Browser) -> None:
    endpoint = make_endpoint("10.0.0.1:1", "m")
    endpoint.identified(EngineIdentity("0.32.0", ("m", "sql-lora"), 8192, ("sql-lora",)))
    endpoint.health.withhold("draining")
    with AdminPort([endpoint], {}) as admin:
        browser.open(admin.url)
        browser.js("document.querySelector('#endpoints .details').click()")
        browser.until_text("#endpoints .more", "sql-lora")
        shown = browser.text("#endpoints .more")
        for sentence in (
            "0.32.0, up to 8,192 tokens",
            "draining: gets nothing new",
            "the default, which may be far off",
        ):
            assert sentence in shown


def test_prompts_that_take_the_longer_the_longer_they_are_say_so_and_wait_for_as_long(browser: Browser) -> None:
    endpoint = make_endpoint("10.0.0.1:1", "m")
    endpoint.speed = Speed(0.1, 20.0, prefill_growth=6e-5)
    Ticket(endpoint, 20_000, 20_000)
    with AdminPort([endpoint], {}) as admin:
        browser.open(admin.url)
        browser.until_text("#endpoints", "3,200 ms")  # 20,000 tokens, and 12,000 more for their attention
        browser.js("document.querySelector('#endpoints .details').click()")
        browser.until_text("#endpoints .more", "0.1 ms per token and 6 % more for each 1,000 before it")


def test_what_waits_is_shown_by_priority_and_tenant(admin: AdminPort, browser: Browser) -> None:
    def wait() -> None:
        admission = admin.services.admission
        for level, tenant in ((1, b"acme"), (0, HOSTILE.encode()), (0, b"acme")):
            waits = Waiting(admission.lane("small"), lambda _: 0.0, level=level, tenant=tenant, cost_ms=1500.0)
            admission.queue.enter(waits, 0.0)

    browser.open(admin.url)
    assert browser.text("#queues-section") == ""  # admission is off
    admin.do(wait)
    browser.until_text("#queues-note", "3 requests held back")
    assert browser.count("#queues tbody tr") == 2 + 3  # bands and their tenants
    assert HOSTILE in browser.text("#queues")
    assert "1,500 ms" in browser.text("#queues tbody tr:first-child")


def test_learned_speeds_say_what_they_are_worth(admin: AdminPort, browser: Browser) -> None:
    engine = admin.services.router.pool.by_address["10.0.0.1:1"]
    engine.identified(EngineIdentity("0.32.0", ("small", "sql-lora"), adapters=("sql-lora",)))
    browser.open(admin.url)
    row = browser.text("#speeds tbody tr:first-child")
    for shown in ("small", "adapters: sql-lora", "default", "prefill: no answer yet", "not known apart"):
        assert shown in row


def test_the_load_of_an_adapter_is_a_part_of_the_cost_and_its_slots_are_among_the_details(
    admin: AdminPort, browser: Browser
) -> None:
    def decide() -> None:
        engine = admin.services.router.pool.by_address["10.0.0.1:1"]
        engine.identified(EngineIdentity("0.32.0", ("small", "sql-lora"), adapters=("sql-lora",)))
        admin.services.router.pool = admin.services.router.pool.renewed()
        facts = RequestFacts("sql-lora", 100, 10, "en", 0).called("sql-lora", is_adapter=True)
        in_flight = admin.services.router.admit(facts)
        assert isinstance(in_flight, InFlight)
        admin.services.recorder.decided(facts, in_flight.decision, b"adapted", 0.001)

    admin.do(decide)
    browser.open(admin.url)
    browser.until_text("#decisions", "sql-lora")
    assert browser.count("#decisions .bar .adapter") == 1
    browser.js("document.querySelector('#endpoints .details').click()")
    browser.until_text("#endpoints", "sql-lora; 1 slot; a load takes 100 ms, not learned yet")


def test_sources_say_how_old_their_sets_are_and_what_is_withheld(admin: AdminPort, browser: Browser) -> None:
    def discover() -> None:
        good, bad = SourceStatus("file", lambda: 100.0), SourceStatus("dns", lambda: 100.0)
        good.endpoints, good.confirmed_s = (), 58.0
        bad.failed("vllm.prod: the name server does not answer")
        admin.services.discovery.statuses = (good, bad)
        admin.services.router.pool.endpoints[0].health.withhold("unknown_to_envoy")

    browser.open(admin.url)
    assert browser.text("#sources-section") == ""
    admin.do(discover)
    browser.until_text("#sources", "42 s ago")
    assert "the name server does not answer" in browser.text("#sources tbody tr:nth-child(2)")
    assert "1 endpoint chosen but not served: does Envoy know it?: 10.0.0.1:1" in browser.text("#withheld")


def test_rates_show_who_is_limited_and_what_is_left(admin: AdminPort, browser: Browser) -> None:
    def limit() -> None:
        rates = admin.services.rates
        rates.use(RateRules({b"acme": Rate(tokens=1000.0)}, Rate(tokens=500.0, engine_ms=4000.0)), 0.0)
        rates.take(b"acme", 250.0, 10.0, 0.0)
        rates.take(HOSTILE.encode(), 500.0, 100.0, 0.0)
        rates.take(HOSTILE.encode(), 10.0, 100.0, 0.0)

    browser.open(admin.url)
    assert browser.text("#rates-section") == ""  # rate limits are off
    admin.do(limit)
    browser.until_text("#rates-note", "2 tenants of the last minute; 1 with nothing left")
    rows = browser.text("#rates tbody tr").split("|")
    assert HOSTILE in rows[0]
    assert "none" in rows[0]
    assert "in 1 min" in rows[0]
    assert "750, 75 %" in browser.text("#rates tbody tr:last-child")


def test_calibration_shows_expected_against_seen_by_tenths(admin: AdminPort, browser: Browser) -> None:
    def calibrate() -> None:
        pairs = deque((float(ms), 3.0 * ms) for ms in range(10, 110))
        admin.services.calibration._pairs["small", "first_token"] = pairs

    browser.open(admin.url)
    assert browser.text("#calibration-section") == ""
    admin.do(calibrate)
    browser.until_text("#calibration", "3 times what was expected")
    assert "first token" in browser.text("#calibration")
    assert "60 ms" in browser.text("#calibration td[data-label='Expected']")
    assert browser.count("#calibration circle") == 10
    assert "15 and 42" in str(browser.find("#calibration svg").get_attribute("aria-label"))


def test_cascades_show_whose_answers_were_accepted_and_why_some_were_not_judged(
    admin: AdminPort, browser: Browser
) -> None:
    settings = {"cascade": ["small", "large"], "thresholds": [50], "judge": {"function": "judges:score"}}
    config = admin.services.config.model_copy(
        update={"routes": {"answer": CascadeRouteSettings.model_validate(settings)}}
    )

    def count() -> None:
        admin.services.config = config
        counts = admin.services.cascades.counts
        counts.held = 2
        for _ in range(3):
            counts.accept("answer", "small", 0.0)
        counts.accept("answer", "large", 2.0)
        counts.passed_for("answer", "judge")
        counts.scored("small", 70.0)

    browser.open(admin.url)
    assert browser.text("#cascades-section") == ""
    admin.do(count)
    browser.until_text("#cascades", "small 3 (75 %)")
    assert "2 answers held back" in browser.text("#cascades-note")
    for shown in ("scored 70 on average", "large 1 (25 %)", "the judge failed: 1", "500 ms"):
        assert shown in browser.text("#cascades")


def test_copies_of_sessions_under_way_are_shown(admin: AdminPort, browser: Browser) -> None:
    def copy() -> None:
        admin.services.mover.copies = lambda: [CopyUnderWay("10.0.0.1:1", "10.0.0.3:1", 4096, 1.5)]  # type: ignore[method-assign]
        admin.services.router.planner.draining.add("10.0.0.1:1")

    browser.open(admin.url)
    assert browser.text("#moves-section") == ""
    admin.do(copy)
    browser.until_text("#moves", "10.0.0.3:1")
    assert "4,096" in browser.text("#moves")
    assert "draining: 10.0.0.1:1" in browser.text("#moves-note")
    assert "draining: its sessions move away" in browser.text("#endpoints tbody tr:first-child")


def test_the_tuner_shows_its_weights_and_its_last_trials(browser: Browser) -> None:
    traffic, _ = tuned(lambda policy, _number: 100.0 / policy.queue_weight)
    traffic.run(1500)
    with AdminPort([make_endpoint("10.0.0.1:1", "m")], {}) as admin:
        browser.open(admin.url)
        assert browser.text("#tuner-section") == ""
        admin.do(lambda: setattr(admin.services.router, "tuner", traffic.router.tuner))
        browser.until_text("#weights", "queue_weight")
        assert "Live; tries weights" in browser.text("#tuner-note")
        assert browser.text("#tuner-state") == ""  # without a token nothing may be changed
        browser.js("document.querySelector('#tuner-section summary').click()")
        assert "accepted" in browser.text("#trials")


@pytest.fixture
def writable(tmp_path: Path) -> Iterator[AdminPort]:
    """Two endpoints of one model, and a token in a file."""
    file = tmp_path / "token"
    file.write_text("secret" * 8)
    with AdminPort([make_endpoint(f"10.0.0.{n}:1", "m") for n in (1, 2)], {}, token_file=file) as running:
        yield running


def open_details(browser: Browser) -> None:
    browser.js("document.querySelector('#endpoints .details').click()")
    browser.until_text("#endpoints .act button", "drain 10.0.0.1:1")


def test_an_endpoint_is_drained_and_taken_back_with_the_token_by_keyboard(
    writable: AdminPort, browser: Browser
) -> None:
    browser.open(writable.url)
    open_details(browser)
    browser.find("#endpoints .act button").send_keys(Keys.ENTER)
    browser.until_text("#endpoints .act output", "Type the token first")
    assert browser.js("return document.activeElement.id") == "token"
    browser.driver.switch_to.active_element.send_keys("wrong" * 8)
    browser.find("#endpoints .act button").send_keys(Keys.ENTER)
    browser.until_text("#endpoints .act output", "does not know this token")
    assert writable.services.router.planner.draining == set()
    browser.find("#token").clear()
    browser.find("#token").send_keys("secret" * 8)
    browser.find("#endpoints .act button").send_keys(Keys.ENTER)
    browser.until(lambda: alert_is_present()(browser.driver), "it asks before it drains")
    assert "Drain 10.0.0.1:1?" in browser.driver.switch_to.alert.text
    browser.driver.switch_to.alert.accept()
    browser.until(lambda: writable.services.router.planner.draining == {"10.0.0.1:1"}, "it drains")
    browser.until_text("#endpoints .act button", "take 10.0.0.1:1 back")
    browser.find("#endpoints .act button").send_keys(Keys.ENTER)
    browser.until(lambda: writable.services.router.planner.draining == set(), "it is taken back")
    assert browser.js("return JSON.stringify([localStorage.length, document.cookie])") == '[0,""]'


def test_a_session_is_moved_from_the_page(writable: AdminPort, browser: Browser) -> None:
    writable.decide("m", x_session_id="s")
    browser.open(writable.url)
    browser.find("#token").send_keys("secret" * 8)
    browser.find("#session-id").send_keys("s", Keys.ENTER)
    browser.until_text("#session-answer", "It is bound to")
    browser.find("#move button").send_keys(Keys.ENTER)
    browser.until_text("#move-answer", "at its next request: it moves at once")
    assert len(writable.services.router.planner.commands) == 1


def test_without_a_token_file_the_page_offers_no_action(admin: AdminPort, browser: Browser) -> None:
    admin.decide("small", x_session_id="s")
    browser.open(admin.url)
    browser.js("document.querySelector('#endpoints .details').click()")
    browser.until_text("#endpoints .more", "Trouble")
    assert browser.text("#endpoints .act, #actions-section, #move") == ""


def test_every_section_has_a_heading_and_every_table_its_roles(admin: AdminPort, browser: Browser) -> None:
    browser.open(admin.url)
    named = "!e.ariaLabel && !document.getElementById(e.getAttribute('aria-labelledby'))"
    unnamed = f"return [...document.querySelectorAll('section, table')].filter(e => {named}).map(e => e.outerHTML)"
    assert browser.js(unnamed) == []
    assert browser.count("table") == browser.count("table[role=table]")
