"""How fast a gang runs, how much memory a trial takes, what a change costs: belief for a policy, truth for a simulator."""
