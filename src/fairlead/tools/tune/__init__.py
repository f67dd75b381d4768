"""Tuning offline: weights compared on recorded traffic, and GORGO's tuner as published, which is a baseline."""
