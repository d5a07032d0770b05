"""Data that stays at the nodes of a Ray cluster: who holds what, and what holders find."""
