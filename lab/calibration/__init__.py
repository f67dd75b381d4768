"""The simulated engine against a real one: its parameters are fitted, then both get the same requests."""
