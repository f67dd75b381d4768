"""Writes deploy/grafana/*.json: `python scripts/dashboards.py`.

A panel is a title, one of Grafana's units, and its queries with their legends; `$job` and `$instance` are chosen on the
dashboard.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parents[1] / "deploy/grafana"
_COLUMNS, _HEIGHT = 2, 8
_GRID = 24 // _COLUMNS


class Panel(NamedTuple):
    title: str
    unit: str
    queries: Mapping[str, str]  # legend by query
    text: str = ""  # shown when the pointer is on the title's mark


class Dashboard(NamedTuple):
    name: str
    title: str
    panels: tuple[Panel, ...]


def _rate(metric: str, by: str, more: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({_of(metric, more)}[$__rate_interval]))"


def _quantile(q: float, metric: str, by: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q:g}, {_rate(metric + '_bucket', labels)})"


def _rate_or_zero(metric: str, by: str = "", more: str = "") -> str:
    """A line for each that has ever counted; most of a counter's labels never do."""
    return _or_zero(f"{_rate(metric, by, more)}{_counted(metric, by, more)}", by)


def _lately(metric: str, by: str) -> str:
    """For events so rare that a rate a second says nothing."""
    return _or_zero(f"sum by ({by}) (increase({_of(metric)}[5m])){_counted(metric, by)}", by)


def _counted(metric: str, by: str, more: str = "") -> str:
    return f" and sum by ({by}) ({_of(metric, more)}) > 0" if by else ""


def _sum_or_zero(metric: str, by: str) -> str:
    return _or_zero(_sum(metric, by), by)


def _or_zero(query: str, by: str) -> str:
    """A line at 0, called "none", while the query has nothing. A plain `or vector(0)` would stay, without a name."""
    if not by:
        return f"{query} or vector(0)"
    return f'{query} or on() label_replace(vector(0), "{by.split(",")[0]}", "none", "", "")'


def _greatest(metric: str, by: str) -> str:
    return f"max by ({by}) ({_of(metric)})"


def _share(part: str, whole: str, by: str) -> str:
    return f"{_rate(part, by)} / {_rate(whole, by)}"


def _of(metric: str, more: str = "") -> str:
    return f'{metric}{{job="$job", instance=~"$instance"{", " + more if more else ""}}}'


def _sum(metric: str, by: str) -> str:
    return f"sum by ({by}) ({_of(metric)})"


def _quantiles(title: str, metric: str, by: str, text: str = "") -> Panel:
    queries = {_quantile(q, metric, by): f"p{q * 100:g} {{{{{by}}}}}".replace(" {{}}", "") for q in (0.5, 0.95)}
    return Panel(title, "s", queries, text)


POOL = Dashboard(
    "pool",
    "Fairlead / pool",
    (
        Panel("Requests a second, by status", "reqps", {_rate("fairlead_requests_total", "code"): "{{code}}"}),
        Panel(
            "Requests a second, by endpoint",
            "reqps",
            {_rate("fairlead_requests_total", "endpoint", "endpoint!=" + chr(34) * 2): "{{endpoint}}"},
        ),
        _quantiles("Time to the first token", "fairlead_time_to_first_token_seconds", "model", "Of observed streams"),
        _quantiles("Duration of requests", "fairlead_request_duration_seconds", "model"),
        Panel("In flight", "short", {_sum("fairlead_inflight_requests", "endpoint"): "{{endpoint}}"}),
        Panel(
            "Prompt tokens that wait for prefill",
            "short",
            {_sum("fairlead_pending_prefill_tokens", "endpoint"): "{{endpoint}}"},
        ),
        Panel("May be chosen", "bool", {f"min by (endpoint) ({_of('fairlead_endpoint_up')})": "{{endpoint}}"}),
        Panel("Round trip", "s", {_greatest("fairlead_rtt_seconds", "endpoint"): "{{endpoint}}"}),
        Panel(
            "Ejections in 5 minutes",
            "short",
            {_lately("fairlead_endpoint_ejections_total", "endpoint"): "{{endpoint}}"},
        ),
        Panel(
            "Failed reads of engines' metrics and health, in 5 minutes",
            "short",
            {
                _lately(
                    "fairlead_engine_watch_failures_total", "endpoint, kind, reason"
                ): "{{endpoint}} {{kind}} {{reason}}"
            },
        ),
    ),
)

DECISIONS = Dashboard(
    "decisions",
    "Fairlead / decisions",
    (
        Panel(
            "Expected cost of the chosen endpoint, by term",
            "s",
            {_share("fairlead_cost_seconds_sum", "fairlead_cost_seconds_count", "term"): "{{term}}"},
            "rtt, prefill, queue and decode add up to the expected latency, with adapter for requests that have one "
            "loaded; total is that divided by the chance of being right",
        ),
        _quantiles("Time of a decision", "fairlead_decision_seconds", "", "From the whole body, parsing included"),
        Panel("Attempts a second, by model", "reqps", {_rate("fairlead_attempts_total", "model"): "{{model}}"}),
        Panel(
            "Prompt tokens a second, by model", "short", {_rate("fairlead_prompt_tokens_total", "model"): "{{model}}"}
        ),
        Panel(
            "Refused by Fairlead, a second",
            "reqps",
            {_rate_or_zero("fairlead_requests_total", "code", 'model="", code!~"2.."'): "{{code}}"},
        ),
        Panel(
            "Faults of Fairlead itself in 5 minutes",
            "short",
            {_lately("fairlead_failures_total", "stage"): "{{stage}}"},
            "The log has the cause; requests went on",
        ),
    ),
)

CACHE = Dashboard(
    "cache",
    "Fairlead / cache and sessions",
    (
        Panel(
            "Share of prompt tokens expected in a cache",
            "percentunit",
            {_share("fairlead_prefix_hit_tokens_total", "fairlead_prompt_tokens_total", "model"): "{{model}}"},
        ),
        Panel("Sessions bound", "short", {_sum("fairlead_sessions", "instance"): "{{instance}}"}),
        Panel(
            "Blocks thought to be cached", "short", {_sum("fairlead_prefix_index_blocks", "endpoint"): "{{endpoint}}"}
        ),
        Panel("Memory of the prefix index", "bytes", {_sum("fairlead_prefix_index_bytes", "instance"): "{{instance}}"}),
        Panel(
            "KV events a second",
            "short",
            {_rate_or_zero("fairlead_kv_events_total", "outcome"): "{{outcome}}"},
            "lost: the index of that endpoint was dropped and is learned again",
        ),
        Panel(
            "Exchanges with the shared store, a second",
            "short",
            {_rate_or_zero("fairlead_store_total", "outcome"): "{{outcome}}"},
            "Where sessions.store is Redis",
        ),
        Panel(
            "Prompt tokens that context reuse changed, a second",
            "short",
            {
                _rate_or_zero("fairlead_context_dropped_tokens_total"): "replaced by references",
                _rate_or_zero("fairlead_context_reordered_tokens_total"): "reordered",
            },
        ),
        Panel(
            "Context reuse, by outcome",
            "reqps",
            {_rate_or_zero("fairlead_context_requests_total", "outcome"): "{{outcome}}"},
        ),
    ),
)

LEARNING = Dashboard(
    "learning",
    "Fairlead / learned of engines",
    (
        Panel(
            "Prefill of one token",
            "s",
            {_greatest("fairlead_learned_prefill_seconds_per_token", "endpoint, model"): "{{endpoint}} {{model}}"},
            "Empty until some ten answers to prompts of different lengths were observed",
        ),
        Panel(
            "Decoding of one token, alone",
            "s",
            {_greatest("fairlead_learned_decode_seconds_per_token", "endpoint, model"): "{{endpoint}} {{model}}"},
            "Empty until some ten answers were observed; of streams, those with stream_options.include_usage",
        ),
        Panel(
            "Answers that these go by",
            "short",
            {_greatest("fairlead_learned_samples", "endpoint, part"): "{{endpoint}} {{part}}"},
            "0: an endpoint is taken to be like its model",
        ),
        Panel("Tokens of an answer", "short", {_greatest("fairlead_learned_answer_tokens", "model"): "{{model}}"}),
    ),
)

ADMISSION = Dashboard(
    "admission",
    "Fairlead / queues and discovery",
    (
        Panel("Requests that wait", "short", {_sum_or_zero("fairlead_waiting_requests", "priority"): "{{priority}}"}),
        Panel(
            "Engine time that they will take",
            "s",
            {_sum_or_zero("fairlead_waiting_engine_seconds", "priority"): "{{priority}}"},
        ),
        Panel(
            "What became of requests that waited, a second",
            "reqps",
            {_rate_or_zero("fairlead_waited_requests_total", "priority, outcome"): "{{priority}} {{outcome}}"},
            "go: it began after all; evicted: ended while it ran; the others were refused with 429 or 503",
        ),
        Panel(
            "How long they waited",
            "s",
            {_or_zero(_quantile(0.95, "fairlead_wait_seconds", "priority"), "priority"): "p95 {{priority}}"},
        ),
        Panel(
            "Requests over their tenant's rate limit",
            "reqps",
            {_rate_or_zero("fairlead_rate_limited_requests_total", "limit"): "{{limit}}"},
            "Refused with 429; which tenants have little left is at /debug/rates",
        ),
        Panel(
            "Part of each rate limit that a sidecar may grant",
            "percentunit",
            {_greatest("fairlead_rate_limit_share", "instance"): "{{instance}}"},
            "1 while sidecars share what they granted over Redis",
        ),
        Panel("Endpoints", "short", {f"count({_of('fairlead_endpoint_up')})": "in the pool"}),
        Panel(
            "Endpoints that get nothing new",
            "short",
            {_sum("fairlead_endpoints_withheld", "reason"): "{{reason}}"},
            "For another reason than their health",
        ),
        Panel(
            "Since a source of endpoints was last read",
            "s",
            {_or_zero(_greatest("fairlead_discovery_age_seconds", "source"), "source"): "{{source}}"},
            "It grows while the source is away; its last set stays in force",
        ),
        Panel("Envoys that follow the pool", "short", {_sum("fairlead_eds_streams", "instance"): "{{instance}}"}),
    ),
)

CASCADES = Dashboard(
    "cascades",
    "Fairlead / cascades",
    (
        Panel("Accepted answers, by model", "reqps", {_rate("fairlead_cascade_accepted_total", "model"): "{{model}}"}),
        Panel(
            "Not judged, by reason",
            "reqps",
            {_rate_or_zero("fairlead_cascade_passed_total", "reason"): "{{reason}}"},
        ),
        _quantiles("Time that judging and larger models add", "fairlead_cascade_added_seconds", ""),
        Panel("Answers held back now", "short", {_sum("fairlead_cascade_held", "instance"): "{{instance}}"}),
    ),
)

MIGRATION = Dashboard(
    "migration",
    "Fairlead / migration and tuner",
    (
        Panel(
            "Moves of sessions in 5 minutes",
            "short",
            {_lately("fairlead_session_migrations_total", "way, outcome"): "{{way}} {{outcome}}"},
        ),
        Panel("Copies under way", "short", {_sum("fairlead_session_migrations_under_way", "instance"): "{{instance}}"}),
        Panel(
            "Tokens moved a second",
            "short",
            {_rate_or_zero("fairlead_session_migrated_tokens_total"): "tokens"},
        ),
        Panel("Best weights known to the tuner", "short", {_sum("fairlead_tuner_weight", "weight"): "{{weight}}"}),
    ),
)

SIDECAR = Dashboard(
    "sidecar",
    "Fairlead / the sidecar itself",
    (
        Panel("CPU", "percentunit", {_rate("process_cpu_seconds_total", "instance"): "{{instance}}"}),
        Panel(
            "Delay of the event loop",
            "s",
            {_quantile(0.99, "fairlead_event_loop_delay_seconds", "instance"): "p99 {{instance}}"},
        ),
        Panel("Memory", "bytes", {_sum("process_resident_memory_bytes", "instance"): "{{instance}}"}),
        Panel("Streams open", "short", {_sum("fairlead_running_streams", "instance"): "{{instance}}"}),
        Panel("Connections of Envoy", "short", {_sum("fairlead_edge_connections", "instance"): "{{instance}}"}),
        Panel("Bytes of bodies that are held", "bytes", {_sum("fairlead_held_body_bytes", "instance"): "{{instance}}"}),
        Panel(
            "Connections closed for what their peer did, in 5 minutes",
            "short",
            {_lately("fairlead_edge_faults_total", "code"): "{{code}}"},
        ),
        Panel(
            "Traced requests a second",
            "short",
            {_rate_or_zero("fairlead_traced_requests_total", "outcome"): "{{outcome}}"},
            "failed: the collector did not take them; dropped: too many waited for it",
        ),
        Panel("Open files", "short", {_sum("process_open_fds", "instance"): "{{instance}}"}),
        Panel("Version", "short", {f"count by (version) ({_of('fairlead_build_info')})": "{{version}}"}),
    ),
)

DASHBOARDS: Final = (POOL, DECISIONS, CACHE, ADMISSION, LEARNING, CASCADES, MIGRATION, SIDECAR)


def grafana(dashboard: Dashboard) -> dict[str, Any]:
    """The JSON model that Grafana 10 and later import."""
    return {
        "uid": f"fairlead-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["fairlead"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "links": [{"type": "dashboards", "tags": ["fairlead"], "title": "Fairlead", "asDropdown": True}],
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    source = {"type": "prometheus", "uid": "${datasource}"}
    yield _labels("job", "label_values(fairlead_build_info, job)", source)
    instances = _labels("instance", 'label_values(fairlead_build_info{job="$job"}, instance)', source)
    yield instances | {
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _labels(name: str, query: str, source: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "type": "query", "label": name, "query": query, "datasource": source, "refresh": 2}


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "gridPos": {"x": column * _GRID, "y": row * _HEIGHT, "w": _GRID, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": source, "expr": query, "legendFormat": legend}
            for i, (query, legend) in enumerate(panel.queries.items())
        ],
    }


def texts() -> dict[Path, str]:
    """What each file is to hold."""
    return {FOLDER / f"{d.name}.json": json.dumps(grafana(d), indent=2) + "\n" for d in DASHBOARDS}


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(FOLDER.parents[1]))
