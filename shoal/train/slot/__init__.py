"""One slot at work: the lanes that it holds, its units, their evaluation."""
