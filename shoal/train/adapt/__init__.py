"""Recipes out of code that was written for other libraries."""
