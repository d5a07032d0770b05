"""What runs on the nodes of a Ray cluster: the slots' processes, their data, and the feeders."""
