"""`fairlead bench-rivals`: Fairlead and other gateways for LLM servers, in the same passes on the same machine."""
