"""The `ray` backend: slots are actors of a Ray cluster. Ray is imported only here."""
