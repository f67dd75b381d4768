"""Cascades at run time: the first model's answer is held back, judged, and kept or replaced by a larger model's.

`route` and `answers` are pure; `escalation` asks the judge and, through the gateway, the larger models.
"""
