"""Files of other tools as data: each reader needs its own library."""
