"""The `ray` backend, as the driver sees it: slots are actors of a Ray cluster."""
