"""Policies for slots that come and go: BFTrainer's optimal reallocation (Liu et al., 2021)."""
