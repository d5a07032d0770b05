"""Shards made out of other data: shuffled once, out of core."""
