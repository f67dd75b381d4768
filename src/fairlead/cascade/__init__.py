"""Cascades: cheap models answer first, a judge decides whether a larger one must. Source: Cascadia.

The first model's answer is held back and judged, then kept or replaced by a larger model's. `route` and `answers` are
pure; `escalation` asks the judge and, through the gateway, the larger models. Thresholds and GPUs are planned together,
before anything runs, by `fairlead.tools.plan`.
"""
