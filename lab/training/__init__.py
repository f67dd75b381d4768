"""Training of the lab's tiny models. Runs in the lab's own environment, as it needs torch and transformers."""
