"""Several studies share one cluster: each has its own process, recipe and priority."""
