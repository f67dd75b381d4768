"""Fairlead: sends each LLM request to the endpoint with the least expected time to a correct answer.

The way of a request: `extproc` (gRPC edge) -> `core` (facts, candidates, cost, decision) with a policy from `policies`
-> back to Envoy. Everything else runs alongside it. `fairlead.client` is for programs that send requests.
"""

__version__ = "0.1.0"
