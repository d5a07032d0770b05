"""What people ask of a study beside its searcher, and what the notes mean that they leave."""
