"""What is called while a study runs: your own code, and loggers for other tools."""
