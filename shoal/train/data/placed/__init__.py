"""Data that stays where it lies: which node holds which shard, and how its holders read it."""
