"""Shards that lie at other nodes: models are validated there, and samples are dealt from there."""
