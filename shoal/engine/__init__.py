"""The one loop, and the journal it writes."""
