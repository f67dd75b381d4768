"""Prometheus metrics, made from the recorder's and the pool's plain counts when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from fairlead.cascade.serving.counts import CascadeCounts
from fairlead.context.reuse import ContextReuse
from fairlead.core.learning import Learner
from fairlead.core.router import Router
from fairlead.engines.watch import WatchCounts
from fairlead.migration.mover import Mover
from fairlead.telemetry import cascade, reuse, tuner
from fairlead.telemetry.families import histogram
from fairlead.telemetry.moves import move_metrics
from fairlead.telemetry.recorder import Recorder

if TYPE_CHECKING:  # libraries that only some installations have
    from fairlead.engines.kv_events import KvEventCounts
    from fairlead.stores.shared import SharedStore


class FairleadCollector(Collector):
    """Reads counts; must be scraped on the event loop that writes them."""

    def __init__(
        self,
        router: Router,
        recorder: Recorder,
        learner: Learner,
        running_streams: Callable[[], int],
        watched: Callable[[], Mapping[str, WatchCounts]] = dict,
        kv_events: Callable[[], Mapping[str, KvEventCounts]] = dict,
        store: SharedStore | None = None,
        mover: Mover | None = None,
        reuse: ContextReuse | None = None,
        cascades: CascadeCounts | None = None,
    ) -> None:
        self._router = router
        self._recorder = recorder
        self._learner = learner
        self._running_streams = running_streams
        self._watched = watched
        self._kv_events = kv_events
        self._store = store
        self._mover = mover
        self._reuse = reuse
        self._cascades = cascades

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._pool()
        yield from self._tables()
        yield from self._watching()
        yield from self._shared()
        yield from self._learned()
        yield from tuner.metrics(self._router)
        if self._mover is not None:
            yield from move_metrics(self._router.planner, self._mover)
        if self._reuse is not None:
            yield from reuse.metrics(self._reuse)
        if self._cascades is not None:
            yield from cascade.metrics(self._cascades)
        yield from self._faults()

    def _requests(self) -> Iterator[Metric]:
        recorder = self._recorder
        recorder.settle()
        requests = CounterMetricFamily(
            "fairlead_requests",
            "Requests ended, by asked model or route, serving model and endpoint, and status (499: client left first)",
            labels=("route", "model", "endpoint", "code"),
        )
        for (route, model, endpoint, code), count in recorder.requests.items():
            requests.add_metric((route, model, endpoint, str(code)), count)
        yield requests
        yield histogram(
            "fairlead_decision_seconds",
            "Time from the whole body to the decision, parsing included",
            (),
            [((), recorder.decision_seconds)],
        )
        yield histogram(
            "fairlead_cost_milliseconds",
            "Cost of the chosen endpoint: each term in ms, and the total after dividing by the chance of being right",
            ("term",),
            [((term,), histogram) for term, histogram in recorder.cost_ms.items()],
        )
        yield histogram(
            "fairlead_request_duration_seconds",
            "From request headers to the end of the response",
            ("model",),
            [((model,), histogram) for model, histogram in recorder.durations.items()],
        )
        yield _counter("fairlead_attempts", "Requests sent to a model, first tries and retries", recorder.attempts)
        yield _counter("fairlead_prompt_tokens", "Prompt tokens sent to a model, estimated", recorder.prompt_tokens)
        yield _counter(
            "fairlead_prefix_hit_tokens",
            "Those of them that the router expected in the endpoint's prefix cache",
            recorder.prefix_hit_tokens,
        )

    def _pool(self) -> Iterator[Metric]:
        inflight = GaugeMetricFamily("fairlead_inflight_requests", "Requests sent and not ended", labels=("endpoint",))
        pending = GaugeMetricFamily(
            "fairlead_pending_prefill_tokens", "Prompt tokens sent and still to be prefilled", labels=("endpoint",)
        )
        up = GaugeMetricFamily("fairlead_endpoint_up", "1 if the endpoint may be chosen, else 0", labels=("endpoint",))
        rtt = GaugeMetricFamily("fairlead_rtt_seconds", "Network round trip, smoothed", labels=("endpoint",))
        for endpoint in self._router.pool.endpoints:
            inflight.add_metric((endpoint.address,), endpoint.inflight_requests)
            pending.add_metric((endpoint.address,), endpoint.pending_prefill_tokens)
            up.add_metric((endpoint.address,), float(endpoint.healthy))
            rtt.add_metric((endpoint.address,), endpoint.rtt_ms / 1e3)
        yield from (inflight, pending, up, rtt)

    def _tables(self) -> Iterator[Metric]:
        router = self._router
        yield GaugeMetricFamily("fairlead_sessions", "Sessions that live on an endpoint", value=router.sessions.count)
        yield GaugeMetricFamily(
            "fairlead_prefix_index_bytes", "Memory of the prefix index", value=router.index.used_bytes
        )
        blocks = GaugeMetricFamily(
            "fairlead_prefix_index_blocks", "Prompt blocks of 512 bytes thought to be cached", labels=("endpoint",)
        )
        for endpoint in router.pool.endpoints:
            blocks.add_metric((endpoint.address,), endpoint.indexed_blocks)
        yield blocks

    def _watching(self) -> Iterator[Metric]:
        ejections = CounterMetricFamily(
            "fairlead_endpoint_ejections", "Times an endpoint was taken out of the choice", labels=("endpoint",)
        )
        restarts = CounterMetricFamily("fairlead_endpoint_restarts", "Restarts seen", labels=("endpoint",))
        for endpoint in self._router.pool.endpoints:
            ejections.add_metric((endpoint.address,), endpoint.health.ejections)
            restarts.add_metric((endpoint.address,), endpoint.generation)
        yield from (ejections, restarts)
        scrapes = CounterMetricFamily("fairlead_engine_scrapes", "Reads of engines' metrics", labels=("endpoint",))
        failures = CounterMetricFamily(
            "fairlead_engine_watch_failures",
            "Reads of metrics and probes of health that failed, by reason",
            labels=("endpoint", "kind", "reason"),
        )
        for address, counts in self._watched().items():
            scrapes.add_metric((address,), counts.scrapes)
            for kind, reasons in (("metrics", counts.scrape_failures), ("health", counts.probe_failures)):
                for reason, count in reasons.items():
                    failures.add_metric((address, kind, reason), count)
        yield from (scrapes, failures)

    def _shared(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "fairlead_kv_events",
            "KV events of engines, by what became of them; lost: the precise index forgot the endpoint",
            labels=("endpoint", "outcome"),
        )
        for address, counts in self._kv_events().items():
            for outcome in ("batches", "garbage", "unreadable", "gaps", "replayed", "lost", "restarts", "faults"):
                events.add_metric((address, outcome), getattr(counts, outcome))
        yield events
        store = self._store
        if store is None:
            return
        yield GaugeMetricFamily(
            "fairlead_store_up", "1 if the shared store answers; if 0 the local table serves", value=store.link.up
        )
        yield GaugeMetricFamily("fairlead_store_peers", "Other sidecars that share it", value=store.load.peers.count)
        yield GaugeMetricFamily(
            "fairlead_store_pending", "Bindings that wait to be written to it", value=store.sessions.pending
        )
        outcomes = CounterMetricFamily(
            "fairlead_store", "What passed through the shared store, by outcome", labels=("outcome",)
        )
        sessions, load = store.sessions, store.load
        for outcome, count in (
            ("failures", store.link.failures),
            ("bindings_written", sessions.written),
            ("bindings_conflicting", sessions.conflicts),
            ("bindings_dropped", sessions.dropped),
            ("bindings_learned", sessions.learned),
            ("malformed", sessions.malformed + load.malformed),
            ("loads_sent", load.sent),
            ("loads_heard", load.heard),
        ):
            outcomes.add_metric((outcome,), count)
        yield outcomes

    def _learned(self) -> Iterator[Metric]:
        learner = self._learner
        yield histogram(
            "fairlead_time_to_first_token_seconds",
            "From the pick to the first token, of the streams that were observed in full",
            ("model",),
            [((model,), histogram) for model, histogram in self._recorder.first_token_seconds.items()],
        )
        prefill = _gauge("learned_prefill_seconds_per_token", "Prefill of one uncached token", "endpoint", "model")
        decode = _gauge("learned_decode_seconds_per_token", "Decoding of one token, alone", "endpoint", "model")
        slowdown = _gauge("learned_batch_slowdown_ratio", "Added to it by each other request", "endpoint", "model")
        for endpoint in self._router.pool.endpoints:
            times, labels = learner.models.get(endpoint.model), (endpoint.address, endpoint.model)
            if times is not None and times.prefill_ms_per_token.learned:
                prefill.add_metric(labels, endpoint.prefill_ms_per_token / 1e3)
            if times is not None and times.line is not None:
                decode.add_metric(labels, endpoint.decode_ms_per_token / 1e3)
                slowdown.add_metric(labels, endpoint.batch_slowdown)
        yield from (prefill, decode, slowdown)
        answers = _gauge("learned_answer_tokens", "Tokens of one answer", "model")
        ratios = _gauge("learned_tokens_ratio", "Real prompt tokens for each estimated one", "language")
        lengths = {model: times.answer_tokens for model, times in learner.models.items()}
        for family, learned in ((answers, lengths), (ratios, learner.tokens_ratio)):
            for value, running in learned.items():
                family.add_metric((value,), running.value)
            yield family

    def _faults(self) -> Iterator[Metric]:
        failures = CounterMetricFamily(
            "fairlead_failures",
            "Faults of Fairlead itself; requests went on without its advice. The log has the cause",
            labels=("stage",),
        )
        failures.add_metric(("policy",), self._router.policy_failures)
        failures.add_metric(("stream",), self._recorder.stream_failures)
        if self._reuse is not None:
            failures.add_metric(("reuse",), self._reuse.counts.failures)
        yield failures
        yield CounterMetricFamily(
            "fairlead_reloads_refused",
            "New configurations that were wrong; the old one stays, the log has the reason",
            value=self._recorder.reloads_refused,
        )
        log = self._recorder.log
        if log is not None:
            rows = CounterMetricFamily(
                "fairlead_decision_log_rows",
                "Rows of the decision log; dropped: too many waited, failed: the file could not be written",
                labels=("outcome",),
            )
            for outcome in ("written", "dropped", "failed"):
                rows.add_metric((outcome,), log.counts[outcome])
            yield rows
        yield GaugeMetricFamily(
            "fairlead_running_streams", "Processing streams open now", value=self._running_streams()
        )


def render(collector: Collector) -> bytes:
    """Prometheus text of one collector."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def _counter(name: str, text: str, by_model: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=("model",))
    for model, count in by_model.items():
        family.add_metric((model,), count)
    return family


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fairlead_{name}", f"{text}, as learned from answers", labels=labels)
