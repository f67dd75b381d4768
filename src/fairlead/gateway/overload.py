"""What Envoy gives up before it runs out of connections or of memory.

Every body may be as long as the gateway allows, and one HTTP/2 client may have a thousand of them under way at once.
An Envoy that is killed for its memory ends all requests. Before that it ends those that hold most: over HTTP/2 it knows
which these are; over HTTP/1 it ends some of those that still send, and who sends more is met more often. First go
bodies that have stood still for a minute, and connections without a request. Near the limit it takes no new requests.
"""

from __future__ import annotations

from fairlead.config import Config
from fairlead.gateway.parts import Part, seconds, type_url

# Far below the usual limit of open files in a container (1,048,576) and far above what one pool serves.
MOST_CLIENT_CONNECTIONS = 50_000

# Of the memory. The rest is for what is not on the heap, 65 MiB, and for what comes in between two looks at it.
_HALF, _SCARCE, _EXHAUSTED = 0.5, 0.7, 0.85
_LOOK_EVERY_MS = 20  # in 100 ms a hundred clients filled another 100 MB; a look takes Envoy 0.1 ms
_KIBIBYTES_32_LOG2 = 15  # Envoy keeps account of requests that hold more than this
_IDLE_SHARE = 20.0  # percent of the listener's five minutes: no request should wait in the sidecar's queue for longer
_UNUSED_MS = 10_000  # of a connection without a request, which holds some 40 KB; else an hour

_HEAP = "envoy.resource_monitors.fixed_heap"


def overload(config: Config) -> Part:
    growing, growing_early = [_between(_SCARCE, _EXHAUSTED)], [_between(_HALF, _SCARCE)]
    return {
        "refresh_interval": seconds(_LOOK_EVERY_MS),
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": _KIBIBYTES_32_LOG2},
        "resource_monitors": [_connections(), _heap(config.gateway.most_memory_bytes)],
        "actions": [
            {"name": "envoy.overload_actions.shrink_heap", "triggers": [_at(_SCARCE)]},
            {"name": "envoy.overload_actions.reset_high_memory_stream", "triggers": growing},
            {"name": "envoy.overload_actions.reduce_timeouts", "triggers": growing_early, "typed_config": _timeouts()},
            {"name": "envoy.overload_actions.stop_accepting_requests", "triggers": [_at(_EXHAUSTED)]},
        ],
        "loadshed_points": [{"name": "envoy.load_shed_points.http1_server_abort_dispatch", "triggers": growing}],
    }


def _connections() -> Part:
    # Without a limit Envoy 1.40 warns at start, and a flood of connections ends in "too many open files".
    limit = {
        "@type": type_url("envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"),
        "max_active_downstream_connections": MOST_CLIENT_CONNECTIONS,
    }
    return {"name": "envoy.resource_monitors.global_downstream_max_connections", "typed_config": limit}


def _heap(most_bytes: int) -> Part:
    limit = {
        "@type": type_url("envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig"),
        "max_heap_size_bytes": most_bytes,
    }
    return {"name": _HEAP, "typed_config": limit}


def _at(share: float) -> Part:
    return {"name": _HEAP, "threshold": {"value": share}}


def _between(low: float, high: float) -> Part:
    return {"name": _HEAP, "scaled": {"scaling_threshold": low, "saturation_threshold": high}}


def _timeouts() -> Part:
    of_requests = {"timer": "HTTP_DOWNSTREAM_STREAM_IDLE", "min_scale": {"value": _IDLE_SHARE}}
    of_connections = {"timer": "HTTP_DOWNSTREAM_CONNECTION_IDLE", "min_timeout": seconds(_UNUSED_MS)}
    return {
        "@type": type_url("envoy.config.overload.v3.ScaleTimersOverloadActionConfig"),
        "timer_scale_factors": [of_requests, of_connections],
    }
