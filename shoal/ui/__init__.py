"""The live page: studies as they run, in a browser of this machine. It reads journals only."""
