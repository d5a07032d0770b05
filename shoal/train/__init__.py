"""Training: recipes, data, and what one slot does. The only package that imports torch."""
