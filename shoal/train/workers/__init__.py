"""Processes of this machine that make chunks for a slot."""
