"""`fairlead demo`: the whole system on one machine. `show` runs it from start to end."""
