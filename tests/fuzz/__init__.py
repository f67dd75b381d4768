"""Fuzz of a running sidecar: `make fuzz`, or `python -m tests.fuzz --seconds 30 --seed 1`."""
