"""What a user brings: recipe and data."""
