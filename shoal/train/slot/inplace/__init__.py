"""Validation data that stays where it lies, and is visited there by the models."""
