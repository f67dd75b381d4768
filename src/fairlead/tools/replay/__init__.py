"""Trace replay: recorded traffic through the router's own code and simulated engines, in simulated time."""
