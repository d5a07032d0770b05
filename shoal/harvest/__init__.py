"""Nodes that a batch system lends: those of an allocation, and those that stand idle."""
