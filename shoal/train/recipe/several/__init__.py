"""Several recipes in one study."""
