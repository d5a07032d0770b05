"""`shoal trace`: logs of slots that come and go."""
