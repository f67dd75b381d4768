"""Tuning: a policy's weights learned from request outcomes, without mistaking noise for a gain.

`search`, `window` and `online` are pure, as the core is: `serve` and the simulator run the same tuner.
"""
