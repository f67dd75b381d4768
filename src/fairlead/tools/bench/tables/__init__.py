"""Tables and watches: what grows with prompts, sessions and endpoints, in time, in memory and in idle CPU."""
