"""Metrics of requests: how they ended, what was decided for them, and how long it took."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar

from fairlead.admin.families import histogram
from fairlead.extproc.recorder import Recorder
from fairlead.tracing.exemplars import Exemplars, Traced


def metrics(recorder: Recorder, traced: Exemplars) -> Iterator[Metric]:
    """`traced` are the requests whose traces the durations point to."""
    recorder.settle()
    requests = CounterMetricFamily(
        "fairlead_requests",
        "Requests ended, by asked model or route, serving model and endpoint, and status (499: client left first)",
        labels=("route", "model", "endpoint", "code"),
    )
    for (route, model, endpoint, code), count in recorder.requests.items():
        requests.add_metric((route, model, endpoint, str(code)), count)
    yield requests
    refused = CounterMetricFamily(
        "fairlead_refused_requests",
        "Requests that Fairlead refused itself, by the code of its error; no_endpoint: nothing that serves them is up",
        labels=("route", "reason"),
    )
    for by, count in recorder.refused_for.items():
        refused.add_metric(by, count)
    yield refused
    yield histogram(
        "fairlead_decision_seconds",
        "Time from the whole body to the decision, parsing included",
        (),
        [((), recorder.decision_seconds)],
    )
    yield histogram(
        "fairlead_cost_seconds",
        "Cost of the chosen endpoint: each term, and the total after dividing by the chance of being right",
        ("term",),
        [((term,), seen) for term, seen in recorder.cost_ms.items()],
        unit=1e-3,
    )
    yield histogram(
        "fairlead_request_duration_seconds",
        "From request headers to the end of the response",
        ("model",),
        [((model,), seen) for model, seen in recorder.durations.items()],
        exemplars=lambda labels: {place: _exemplar(each) for place, each in traced.of(*labels).items()},
    )
    yield _counter("fairlead_attempts", "Requests sent to a model, first tries and retries", recorder.attempts)
    yield _counter("fairlead_prompt_tokens", "Prompt tokens sent to a model, estimated", recorder.prompt_tokens)
    yield _counter(
        "fairlead_prefix_hit_tokens",
        "Those of them that the router expected in the endpoint's prefix cache",
        recorder.prefix_hit_tokens,
    )


def _exemplar(traced: Traced) -> Exemplar:
    return Exemplar({"trace_id": traced.trace_id}, traced.duration_s, traced.ended_s)


def _counter(name: str, text: str, by_model: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=("model",))
    for model, count in by_model.items():
        family.add_metric((model,), count)
    return family
