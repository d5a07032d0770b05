"""Whether slots live: which of them hang, and how a process that hangs is ended."""
