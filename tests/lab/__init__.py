"""Tests of the lab: its questions, its environment, and Fairlead in front of real vLLM servers."""
