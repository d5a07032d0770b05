"""How fast a gang runs, how much memory a trial takes, what a change costs.

A profile is belief for a policy, and truth for a simulator.
"""
