"""What a study spends beside its training on its policy, and what that gained."""
