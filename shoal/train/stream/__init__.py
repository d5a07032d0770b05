"""Prepared samples on their way to the lanes: chunks, batches, readers."""
