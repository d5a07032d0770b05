"""Chunks that the nodes of a cluster share: each is made at one node, and sent to the others."""
