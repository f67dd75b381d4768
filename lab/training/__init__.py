"""Training of the lab's tiny models. Runs in the lab's own virtual environment, for it needs torch and transformers."""
