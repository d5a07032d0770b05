"""Passes that the user's code makes by itself."""
