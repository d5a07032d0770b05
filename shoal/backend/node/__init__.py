"""What runs in the processes of a Ray cluster's nodes: slots, feeders, windows and validators."""
