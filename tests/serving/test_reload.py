"""A new configuration: in force as if the sidecar had started with it, or refused without a trace."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from fairlead.config import Config, load
from fairlead.extproc.services import Services
from fairlead.serving.sidecar import Sidecar
from tests.serving.world import POOL, ConfigFile
from tests.waiting import until

TWO: dict[str, Any] = {"endpoints": [*POOL["endpoints"], {"address": "127.0.0.1:2", "model": "large"}]}


def judged(function: str) -> dict[str, Any]:
    return {"cascade": ["small", "large"], "thresholds": [60], "judge": {"function": function}}


OTHER: dict[str, Any] = {
    "gateway": {"listen": "127.0.0.1:8181", "fallbacks": 1},
    "pool": {
        "endpoints": [
            {"address": "127.0.0.1:1", "model": "small", "region": "west"},
            {
                "address": "127.0.0.1:2",
                "model": "large",
                "kv_transfer": {"connector": "mooncake", "bootstrap": "127.0.0.1:3"},
            },
        ],
        "models": {"small": {"prefill_ms_per_token": 0.7}, "large": {"kv_bytes_per_token": 1000}},
    },
    "routes": {"auto": ["small", "large"], "judged": judged("judge:score")},
    "policy": {"name": "fairlead", "queue_weight": 2.0},
    "observe": {"answers_per_second": 7.0, "interval_ms": 400},
    "migration": {"hot_tokens": 4096, "export_s": 3.0},
    "tuner": {"mode": "shadow"},
    "reuse": {"auto": {"always": ["order"]}},
}  # fmt: skip


PUBLISHING = {"endpoints": [POOL["endpoints"][0] | {"region": "west", "kv_events": {"events": "tcp://127.0.0.1:9"}}]}


def in_force(services: Services) -> dict[str, Any]:
    """All that a configuration decides, in plain values."""
    router, mover, cascades, reuse = services.router, services.mover, services.cascades, services.reuse
    return {
        "config": services.config.model_dump(),
        "endpoints": [(e.spec, e.speed.prefill_ms_per_token, e.max_model_len) for e in router.pool.endpoints],
        "routes": router.pool.routes,
        "policy": router.policy,
        "tuner": type(router.tuner),
        "fallbacks": router.fallbacks,
        "rules": router.planner.rules,
        "mover": (mover.deadlines, mover.bootstraps, mover.kv_bytes_per_token),
        "reuse": (reuse.has_rules, reuse._rules, reuse._other_routes),
        "cascades": {name: msgspec.structs.asdict(route) for name, route in cascades.routes.items()},
        "judges": sorted(cascades.escalation.judges),
        "gateway": cascades.escalation.gateway_url,
        "answers_per_second": services.budget.answers_per_second,
        "watched": sorted(services.observers.counts),
        "max_body_bytes": services.max_body_bytes,
    }


def write_judge(file: ConfigFile) -> None:
    (file.folder / "judge.py").write_text("def score(request, answer):\n    return 50\n")


async def test_a_reload_leaves_what_a_start_makes(file: ConfigFile) -> None:
    write_judge(file)
    async with Sidecar(file.write(**OTHER)) as started:
        made_by_a_start = in_force(started.services)
    async with Sidecar(file.write()) as reloaded:
        before = in_force(reloaded.services)
        file.write(**OTHER)
        await reloaded.reloading.reload()
        assert in_force(reloaded.services) == made_by_a_start
        file.write()
        await reloaded.reloading.reload()
        assert in_force(reloaded.services) == before


async def test_an_endpoint_of_another_accelerator_has_times_of_its_own_from_a_reload_on(file: ConfigFile) -> None:
    usual = {"address": "127.0.0.1:1", "model": "small"}
    slower = {"address": "127.0.0.1:2", "model": "small", "prefill_ms_per_token": 1.4}
    async with Sidecar(file.write()) as sidecar:
        file.write(pool={"endpoints": [usual, slower], "models": {"small": {"prefill_ms_per_token": 0.7}}})
        await sidecar.reloading.reload()
        specs = [endpoint.spec for endpoint in sidecar.services.router.pool.endpoints]
    assert [(each.prefill_ms_per_token, each.prefill_ratio) for each in specs] == [(0.7, 1.0), (1.4, 2.0)]
    assert [(each.decode_ms_per_token, each.decode_ratio) for each in specs] == [(20.0, 1.0), (20.0, 1.0)]


def without_zmq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"nonsense": 1}, "unknown key"),
        ({"policy": {"name": "no such policy"}}, "no policy is called"),
        ({"pool": POOL | {"models": {"small": {"capability": "missing.json"}}}}, "missing.json cannot be read"),
        ({"pool": {"endpoints": [{"address": "no.such.host.invalid:1", "model": "small"}]}}, "does not resolve"),
        ({"pool": TWO, "routes": {"judged": judged("missing:score")}}, r"routes\.judged\.judge\.function"),
        ({"pool": PUBLISHING}, r"pip install"),
    ],
    ids=["key", "policy", "capability", "host", "judge", "library"],
)  # fmt: skip
async def test_what_is_refused_leaves_no_trace_but_a_count_and_a_reason(
    file: ConfigFile, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reason: str
) -> None:
    without_zmq(monkeypatch)
    async with Sidecar(file.write(pool=POOL | {"models": {"small": {"prefill_ms_per_token": 0.7}}})) as sidecar:
        before = in_force(sidecar.services)
        file.write(**change)
        with capture_logs() as logged:
            await sidecar.reloading.reload()
        assert in_force(sidecar.services) == before
        assert sidecar.services.recorder.reloads_refused == 1
        (refused,) = [entry["reason"] for entry in logged if "refused" in entry["event"]]
        assert re.search(reason, refused)


async def test_what_only_a_restart_changes_stays_and_is_named_at_each_reload(file: ConfigFile) -> None:
    async with Sidecar(file.write()) as sidecar:
        before = sidecar.services.config
        file.write(
            gateway={"max_body_bytes": 4096, "fallbacks": 7},
            sessions={"ttl": 9},
            prefixes={"ttl": 9.0},
            tenants={"header": "x-tenant"},
            listen=file.listen | {"drain_s": 77.0},
            decisions={"path": "decisions"},
        )
        for _ in range(2):
            with capture_logs() as logged:
                await sidecar.reloading.reload()
            warning, of_envoy = [entry for entry in logged if entry["log_level"] == "warning"]
            assert of_envoy["sections"] == ["listen", "gateway", "tenants"]
            assert set(warning["sections"]) == {
                "listen", "sessions", "prefixes", "tenants", "decisions", "gateway.max_body_bytes",
            }  # fmt: skip
        shown = sidecar.services.config
        assert shown.gateway.fallbacks == sidecar.services.router.fallbacks == 7
        fixed = ("listen", "sessions", "prefixes", "tenants", "decisions")
        assert [getattr(shown, name) for name in fixed] == [getattr(before, name) for name in fixed]
        assert shown.gateway.max_body_bytes == before.gateway.max_body_bytes


async def test_a_new_route_is_said_to_need_a_new_bootstrap(file: ConfigFile) -> None:
    """Envoy has what serves without a sidecar in its bootstrap: there the route would be a 404."""
    async with Sidecar(file.write()) as sidecar:
        file.write(routes={"auto": ["small"]}, policy={"name": "random"})
        with capture_logs() as logged:
            await sidecar.reloading.reload()
        (warning,) = [entry for entry in logged if entry["log_level"] == "warning"]
        assert "`fairlead envoy`" in warning["event"]
        assert warning["sections"] == ["routes"]


async def test_what_envoy_has_no_part_in_needs_no_new_bootstrap(file: ConfigFile) -> None:
    async with Sidecar(file.write()) as sidecar:
        file.write(policy={"name": "random"}, pool=POOL | {"models": {"small": {"prefill_ms_per_token": 0.7}}})
        with capture_logs() as logged:
            await sidecar.reloading.reload()
        assert [entry["event"] for entry in logged if entry["log_level"] != "info"] == []


async def test_a_policy_that_did_not_change_keeps_its_tuner_and_what_was_learned(file: ConfigFile) -> None:
    sections: dict[str, Any] = {"tuner": {"mode": "live"}}
    async with Sidecar(file.write(**sections)) as sidecar:
        router = sidecar.services.router
        tuner, endpoint = router.tuner, router.pool.endpoints[0]
        file.write(**sections, gateway={"fallbacks": 1})
        await sidecar.reloading.reload()
        assert (router.tuner, router.pool.endpoints[0]) == (tuner, endpoint)
        file.write(tuner={"mode": "shadow"})
        await sidecar.reloading.reload()
        assert router.tuner is not tuner


async def test_an_endpoint_that_goes_takes_its_sessions_and_prefixes_with_it(file: ConfigFile) -> None:
    async with Sidecar(file.write(pool=TWO)) as sidecar:
        router = sidecar.services.router
        for number, address in enumerate(("127.0.0.1:1", "127.0.0.1:2")):
            router.sessions.bind(b"%16d" % number, address, time.perf_counter())
            router.index.insert((number + 1,), address, time.perf_counter())
        file.write()
        await sidecar.reloading.reload()
        assert router.sessions.by_endpoint() == {"127.0.0.1:1": 1}
        assert [router.index.blocks(f"127.0.0.1:{port}") for port in (1, 2)] == [1, 0]


async def test_a_fault_of_ours_in_a_reload_does_not_end_the_serving(
    file: ConfigFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Sidecar(file.write()) as sidecar:

        async def broken(*_: object) -> None:
            raise RuntimeError("on purpose")

        monkeypatch.setattr(sidecar.in_force, "apply", broken)
        with capture_logs() as logged:
            await sidecar.reloading.reload()
        assert sidecar.services.recorder.reloads_refused == 1
        assert [entry["log_level"] for entry in logged] == ["error"]


async def test_a_change_while_the_sidecar_starts_is_read_as_soon_as_it_has(file: ConfigFile) -> None:
    sidecar = Sidecar(file.write())
    file.write(gateway={"fallbacks": 5})
    async with sidecar:
        watching = asyncio.create_task(sidecar.reloading.watch(asyncio.Event()))
        await until(lambda: sidecar.services.router.fallbacks == 5, "the change is in force", within_s=20.0)
        watching.cancel()
        await asyncio.wait([watching])


async def test_requests_are_answered_while_a_long_file_is_read(
    file: ConfigFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand tenants with rate limits take a second, and Envoy goes on without an answer after one."""
    answered = threading.Event()

    def read(path: Path) -> Config:
        assert answered.wait(timeout=10)
        return load(path)

    async with Sidecar(file.write()) as sidecar:
        monkeypatch.setattr("fairlead.serving.reload.load", read)
        file.write(gateway={"fallbacks": 5})
        asyncio.get_running_loop().call_later(0.01, answered.set)
        await sidecar.reloading.reload()
        assert sidecar.services.router.fallbacks == 5


async def test_the_file_is_read_again_when_it_changes_and_when_it_is_asked_for(file: ConfigFile) -> None:
    async with Sidecar(file.write()) as sidecar:
        router, wanted = sidecar.services.router, asyncio.Event()
        watching = asyncio.create_task(sidecar.reloading.watch(wanted))
        await asyncio.sleep(0)
        file.write(gateway={"fallbacks": 5})
        await until(lambda: router.fallbacks == 5)
        router.fallbacks = 0
        wanted.set()
        await until(lambda: router.fallbacks == 5)
        file.path.unlink()  # as an editor does, for a moment
        file.write(gateway={"fallbacks": 6})
        await until(lambda: router.fallbacks == 6)
        watching.cancel()
        await asyncio.wait([watching])
    assert sidecar.services.recorder.reloads_refused == 0
