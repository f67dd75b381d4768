"""`fairlead demo`: the whole system on one machine. `show` is the way from its first line to its last."""
