"""Cascades: cheap models answer first, a judge decides whether a larger one must. Source: Cascadia.

`planner` chooses thresholds and GPUs together, before anything runs; `serving` does at run time what a plan says.
"""
