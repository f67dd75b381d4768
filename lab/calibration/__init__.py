"""The simulated engine against a real one: measured times make its parameters, then both get the same requests."""
