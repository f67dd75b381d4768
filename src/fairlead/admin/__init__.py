"""What operators look at: metrics, status pages and what they may ask for, on a port of its own."""
