"""What this machine has for Shoal, and what is missing."""
