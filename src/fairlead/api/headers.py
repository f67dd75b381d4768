"""HTTP headers by which clients, Fairlead, gateways and engines speak to each other, and which a client may not set.

Names are bytes in lower case, as the request path compares them; whoever writes configuration or HTTP decodes them.
"""

from __future__ import annotations

from typing import Final

# Of a request, set by its client.
REQUEST_ID: Final = b"x-request-id"
AUTHORIZATION: Final = b"authorization"
API_KEY: Final = b"x-api-key"  # Anthropic's
TRACEPARENT: Final = b"traceparent"  # of the W3C's Trace Context
UPGRADE: Final = b"upgrade"
SESSION_ID: Final = b"x-session-id"
ATTEMPTED_MODELS: Final = b"x-fairlead-attempted-models"
QUESTION_ID: Final = b"x-fairlead-question-id"
TASK: Final = b"x-fairlead-task"  # which of the models' capability files counts
CONTEXT_REUSE: Final = b"x-fairlead-context-reuse"  # of a request what is wanted, of an answer what was saved

SLO_TTFT_MS: Final = (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms")  # the first that is there counts
SLO_TPOT_MS: Final = (b"x-llm-d-slo-tpot-ms", b"x-slo-tpot-ms")
QUEUE_TTL: Final = b"x-llm-d-inference-ttl"  # how long it may wait at most: 2s, 500ms

# Of a request, set by a gateway that vouches for them; a client that sets them is not believed.
OBJECTIVE: Final = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
FAIRNESS_ID: Final = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
MODEL_REWRITE: Final = (b"x-llm-d-model-name-rewrite", b"x-gateway-model-name-rewrite")  # to send instead

# Of a call to the sidecar, as gRPC metadata, set by the Envoy that `fairlead envoy` configures.
FOLLOWS: Final = b"x-fairlead-follows"  # this Envoy has its endpoints from the sidecar

# Of an answer.
DROPPED_REASON: Final = b"x-llm-d-request-dropped-reason"
MODEL: Final = b"x-fairlead-model"
ENDPOINT: Final = b"x-fairlead-endpoint"
DECISION: Final = b"x-fairlead-decision"
CASCADE_STAGE: Final = b"x-fairlead-cascade-stage"
CASCADE_SCORES: Final = b"x-fairlead-cascade-scores"
CASCADE_ADDED_MS: Final = b"x-fairlead-cascade-added-ms"

# Between a gateway and its endpoint picker (Gateway API's protocol).
DESTINATION: Final = b"x-gateway-destination-endpoint"
SUBSET: Final = DESTINATION + b"-subset"
SERVED: Final = DESTINATION + b"-served"
TEST_SELECTION: Final = b"test-epp-endpoint-selection"  # of GIE's conformance suite: the client names endpoints
TEST_SERVED: Final = b"x-conformance-test-served-endpoint"
ORIGINAL_DESTINATION: Final = b"x-envoy-original-dst-host"  # a cluster of that type would follow it anywhere

# To a proxy next to the engine (llm-d's): which endpoint computes the prompt. Its other levers are a gateway's too.
PREFILLER: Final = b"x-prefiller-host-port"
# Of vLLM (0.32): which of one engine's copies serves, and who goes first.
_OF_VLLM: Final = (b"x-data-parallel-rank", b"x-vllm-priority")
_OF_THE_PROXY: Final = (
    PREFILLER, b"x-encoder-hosts-ports", b"x-data-parallel-host-port", b"x-kv-cache-source-host-port",
)  # fmt: skip

# Of SGLang (0.5.23): each sets a field of the request, in place of the body's.
_OF_SGLANG: Final = tuple(
    b"x-override-" + field
    for field in (
        b"rid", b"bootstrap-host", b"bootstrap-port", b"bootstrap-room", b"conversation-id", b"routed-dp-rank",
        b"disagg-prefill-dp-rank", b"priority",
    )
)  # fmt: skip

# Between the sidecar, the scripts in its Envoy, and the routes.
INNER: Final = b"x-fairlead-inner"  # with our secret: a cascade's own request to a larger model
EVENTS: Final = b"x-fairlead-events"  # the client asked for a stream and the engine is not: Envoy writes the events
PREFILLED: Final = b"x-fairlead-prefilled"  # its KV waits at another engine, for one attempt
ELSE_ALONE: Final = b"else-alone"  # its value where the next attempt needs no KV of another engine
SENT_ONCE: Final = b"x-fairlead-sent-once"  # of full duplex: a second attempt would get the body twice
FIRST_EVENT: Final = b"x-fairlead-first-event"  # its engine may be full: the answer waits for its first event
UNANSWERED: Final = b"x-fairlead-unanswered"  # of Envoy's own 503: the engine's connection failed, or it ended
CLUSTER: Final = b"x-fairlead-cluster"
BLIND_MODEL: Final = b"x-fairlead-blind-model"
MODEL_SPANS: Final = b"x-fairlead-model-spans"
MODEL_QUOTED: Final = b"x-fairlead-model-quoted"

# What Envoy removes before any filter sees it. `INNER` is not among them: the sidecar believes it with its secret only.
GATEWAY_ONLY: Final = (
    DESTINATION, SUBSET, MODEL, ENDPOINT, DECISION, EVENTS, CLUSTER, BLIND_MODEL, MODEL_SPANS, MODEL_QUOTED,
    PREFILLED, SENT_ONCE, FIRST_EVENT, *_OF_VLLM, *_OF_THE_PROXY, *_OF_SGLANG,
)  # fmt: skip
# What the sidecar removes, behind whichever gateway. It overwrites `DESTINATION` itself.
NOT_OF_A_CLIENT: Final = frozenset({*GATEWAY_ONLY, INNER, ORIGINAL_DESTINATION} - {DESTINATION})
# With those that end here, as the endpoint-picker protocol has it: they say how a request waits, and where it goes.
NOT_FOR_ENGINES: Final = NOT_OF_A_CLIENT.union(OBJECTIVE, FAIRNESS_ID, MODEL_REWRITE, SLO_TTFT_MS, (QUEUE_TTL,))
