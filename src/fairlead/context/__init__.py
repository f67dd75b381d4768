"""Context reuse: context blocks reordered and repetitions removed, so that engines find more of a prompt cached.

Source: ContextPilot. Ordering is algorithm 2, de-duplication algorithm 3, the offline index algorithm 4, schedules
algorithm 5. Nothing here knows Envoy: `ContextReuse` takes a request's body and gives back a body.
"""
