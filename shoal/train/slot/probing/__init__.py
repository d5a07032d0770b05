"""Steps whose results are thrown away, to learn what trials need."""
