"""What a run is made of: searcher, policy, backend, from what a user asks for."""
