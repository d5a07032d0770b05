"""A site's own log: how it is made, and what it says to a policy."""
