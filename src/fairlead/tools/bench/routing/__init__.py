"""`fairlead bench-routing`: the same sessions under several policies, through a real Envoy, to simulated engines."""
