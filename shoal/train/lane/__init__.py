"""One trial being trained: its model, optimizer, steps, scores, checkpoints."""
