"""The composition root of `fairlead serve`: the one place that knows the configuration and every part that serves."""
