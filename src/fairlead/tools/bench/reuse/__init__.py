"""`fairlead bench-reuse`: how much of prompts context reuse lets an engine find in its cache, and what it costs."""
