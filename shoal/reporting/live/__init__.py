"""What is shown of a study while it runs."""
