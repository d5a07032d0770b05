"""Optuna's samplers as a searcher."""
