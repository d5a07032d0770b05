"""The user's door: a study, its options, its folder and what came out of it."""
