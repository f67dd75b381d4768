"""The lab: real vLLM servers on a machine without a GPU, with tiny models whose accuracy really degrades.

Not part of the installed package. `make lab` starts it, `make ttca` measures with it, `docs/lab.md` explains it.
"""
