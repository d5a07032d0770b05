"""Checks and timings of a recipe, outside of a study."""
