"""Validation parts that lie at some nodes only: models are sent to them."""
