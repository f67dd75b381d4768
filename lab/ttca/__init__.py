"""Time to correct answer on the lab's engines: the experiment of the LAAR paper (section 6) with our own models."""
