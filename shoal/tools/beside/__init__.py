"""What is asked of a study beside its searcher."""
