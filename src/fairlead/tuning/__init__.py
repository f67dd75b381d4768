"""Tuning: the weights of a policy learned from how requests went, without mistaking noise for a gain.

`search`, `window` and `online` are pure, as the core is: `serve` and the simulator run the same tuner.
"""
