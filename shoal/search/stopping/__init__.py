"""Rules that stop trials early, over any searcher."""
