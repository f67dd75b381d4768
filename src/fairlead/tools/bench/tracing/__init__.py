"""What tracing costs the path of requests: off, on and unsampled, on and sampled, in turns."""
