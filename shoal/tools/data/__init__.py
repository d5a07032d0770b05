"""Data in shards, from the command line."""
