"""A recipe as source: the texts of the user's own modules, and its attributes as plain data."""
