"""What papers define, or ours are compared with, where something of ours is better."""
