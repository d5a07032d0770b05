"""How a study's recipe is stored, known as the user's own, and found again."""
