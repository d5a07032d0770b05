"""A loop of the user's own: trials are asked for, trained elsewhere, and told of."""
