"""The planner: from a profile of requests and a description of models and GPUs to thresholds and a deployment.

Pure but for `files` and `plot`. Needs `fairlead[plan]` (numpy, scipy); nothing at run time imports it.
"""
