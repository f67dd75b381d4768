"""Metrics of what was learned from answers: the speed of each engine, and how each model counts tokens."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairlead.admin.families import histogram
from fairlead.core.learning import Learner
from fairlead.core.pool import Pool
from fairlead.core.text_kinds import KINDS, TEXT_KINDS
from fairlead.extproc.services import Services


def metrics(services: Services) -> Iterator[Metric]:
    yield histogram(
        "fairlead_time_to_first_token_seconds",
        "From the pick to the first token, of the streams that were observed in full",
        ("model",),
        [((model,), seen) for model, seen in services.recorder.first_token_seconds.items()],
    )
    answers = CounterMetricFamily(
        "fairlead_observed_answers",
        "Answers that were observed: learned from, cut before their end, or stalled while this process or the engine "
        "stood still",
        labels=("result",),
    )
    answers.add_metric(("learned",), services.recorder.observations)
    for result, count in services.recorder.unlearned.items():
        answers.add_metric((result,), count)
    yield answers
    yield from _speeds(services.learner, services.router.pool, services.clock_s())
    yield from _tokens(services.learner)
    others = services.router.others
    yield GaugeMetricFamily(
        "fairlead_learned_others_cached_ratio",
        "Part of what seemed to be uncached that other routers have likely sent there; 0 where there are none",
        value=others.chance if others.present else 0.0,
    )


def _speeds(learner: Learner, pool: Pool, now_s: float) -> Iterator[Metric]:
    prefill = _gauge("learned_prefill_seconds_per_token", "Prefill of one uncached token", "endpoint", "model")
    growth = _gauge("learned_prefill_growth_ratio", "Added to prefill by 1,000 tokens before one", "endpoint", "model")
    decode = _gauge("learned_decode_seconds_per_token", "Decoding of one token, alone", "endpoint", "model")
    fixed = _gauge("learned_request_seconds", "What each request takes, whatever its length", "endpoint", "model")
    slowdown = _gauge("learned_batch_slowdown_ratio", "Added to it by each other request", "endpoint", "model")
    adapter = _gauge("learned_adapter_load_seconds", "Loading an adapter", "endpoint", "model")
    samples = GaugeMetricFamily(
        "fairlead_learned_samples",
        "Timed parts of answers of one endpoint that its learned times go by; 0: it is taken to be like its model",
        labels=("endpoint", "model", "part"),
    )
    oldest = GaugeMetricFamily(
        "fairlead_learned_oldest_sample_seconds",
        "Age of the oldest answer of a model that its learned times go by",
        labels=("model",),
    )
    for endpoint in pool.endpoints:
        times, labels = learner.models.get(endpoint.model), (endpoint.address, endpoint.model)
        if times is not None and times.knows_prefill:
            prefill.add_metric(labels, endpoint.speed.prefill_ms_per_token / 1e3)
            growth.add_metric(labels, endpoint.speed.prefill_growth * 1e3)
            fixed.add_metric(labels, endpoint.speed.fixed_ms / 1e3)
        if times is not None and times.knows_decode:
            decode.add_metric(labels, endpoint.speed.decode_ms_per_token / 1e3)
            slowdown.add_metric(labels, endpoint.speed.batch_slowdown)
        if times is not None and times.adapter_load_ms.learned:
            adapter.add_metric(labels, endpoint.speed.adapter_load_ms / 1e3)
        engine = learner.engines.get(labels)
        if engine is not None:
            samples.add_metric((*labels, "prefill"), len(engine.prefill.samples))
            samples.add_metric((*labels, "decode"), len(engine.decode.samples))
    for model, times in learner.models.items():
        since_s = times.since_s
        if since_s is not None:
            oldest.add_metric((model,), max(0.0, now_s - since_s))
    yield from (prefill, growth, fixed, decode, slowdown, adapter, samples, oldest)


def _tokens(learner: Learner) -> Iterator[Metric]:
    answers = _gauge("learned_answer_tokens", "Tokens of one answer", "model")
    ratios = GaugeMetricFamily(
        "fairlead_learned_tokens_ratio",
        "Real prompt tokens for each estimated one, of each kind of text that was seen",
        labels=("model", "kind"),
    )
    for model, times in learner.models.items():
        answers.add_metric((model,), times.answer_tokens.value)
    for model, counted in learner.tokens.items():
        for kind in sorted(counted.kinds):
            if kind < len(TEXT_KINDS):
                ratios.add_metric((model, KINDS[kind]), counted.rates[kind])
    yield from (answers, ratios)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fairlead_{name}", f"{text}, as learned from answers", labels=labels)
