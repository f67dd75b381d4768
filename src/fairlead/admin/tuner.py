"""What the admin port tells of the tuner, and the two things that may be asked of it: freeze and thaw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.admin.answers import json_answer
from fairlead.core.router import Router
from fairlead.tuning.online import OnlineTuner

_NONE: Final = "no tuner runs here; set tuner.mode to shadow or live"
_FORM: Final = 'send {"state": "frozen"} or {"state": "tuning"} with content-type: application/json'


def add_tuner(app: web.Application, router: Router) -> None:
    """`GET /debug/tuner`, and `POST` of the state that it shall be in."""

    async def show(_: web.Request) -> web.Response:
        tuner = _tuner_of(router)
        return json_answer(document(tuner)) if tuner is not None else web.Response(status=404, text=f"{_NONE}\n")

    async def change(request: web.Request) -> web.Response:
        tuner = _tuner_of(router)
        if tuner is None:
            return web.Response(status=404, text=f"{_NONE}\n")
        if request.content_type != "application/json":
            return web.Response(status=415, text=f"{_FORM}\n")
        try:
            wanted = msgspec.json.decode(await request.read(), type=dict[str, str]).get("state")
        except (msgspec.DecodeError, UnicodeDecodeError):
            wanted = None
        if wanted == "frozen":
            tuner.freeze()
        elif wanted == "tuning" and tuner.state == "frozen":
            tuner.thaw()
        elif wanted != "tuning":
            return web.Response(status=400, text=f"{_FORM}\n")
        return json_answer(document(tuner))

    app.router.add_get("/debug/tuner", show)
    app.router.add_post("/debug/tuner", change)


def document(tuner: OnlineTuner) -> dict[str, Any]:
    """Its state and its last trials, newest first. Unknown is null."""
    return {
        "mode": "live" if tuner.applies else "shadow",
        "state": tuner.state,
        "configured": tuner.configured,
        "incumbent": tuner.incumbent,
        "candidate": tuner.candidate,
        "incumbent_p95_ms": _finite(tuner.incumbent_p95_ms),
        "noise": tuner.noise,
        "verdicts": tuner.verdicts,
        "trials": [msgspec.structs.asdict(trial) for trial in reversed(tuner.trials)],
    }


def metrics(router: Router) -> Iterator[Metric]:
    """Nothing where no tuner runs."""
    tuner = _tuner_of(router)
    if tuner is None:
        return
    weights = GaugeMetricFamily("fairlead_tuner_weight", "Best weights known to the tuner", labels=("weight",))
    for name, value in tuner.incumbent.items():
        weights.add_metric((name,), value)
    trials = CounterMetricFamily(
        "fairlead_tuner_trials",
        "Weights that were tried, by verdict; guard: given up at once, rolled_back: back to the configured ones",
        labels=("verdict",),
    )
    for verdict in ("accepted", "rejected", "first_token", "guard", "rolled_back"):
        trials.add_metric((verdict,), tuner.verdicts[verdict])
    yield from (weights, trials)
    yield GaugeMetricFamily("fairlead_tuner_frozen", "1 while nothing is tried", value=tuner.state == "frozen")
    yield GaugeMetricFamily(
        "fairlead_tuner_noise", "Standard deviation of the logarithm of a window's p95", value=tuner.noise
    )
    if tuner.incumbent_p95_ms is not None:
        yield GaugeMetricFamily(
            "fairlead_tuner_p95_seconds",
            "From the pick to the end, 95th percentile of the last window of the best weights",
            value=tuner.incumbent_p95_ms / 1e3,
        )


def _tuner_of(router: Router) -> OnlineTuner | None:
    return router.tuner if isinstance(router.tuner, OnlineTuner) else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and value < float("inf") else None
