"""`fairlead bench`: what a decision costs, and what Fairlead costs behind a real Envoy, measured and written down."""
