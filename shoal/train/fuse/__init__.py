"""Several lanes of one graph in one training step: one vectorized call instead of one a lane.

A lane is a trial's model in training; lanes of one graph compute the same from unlike weights.
In the order in which they are used:

- `gauge`: whether lanes go faster fused, and how many at once, measured on their first steps.
- `graph`: which lanes are of one graph. `obstacles`: what keeps such lanes from being fused.
- `fused`: `Fused`, the lanes trained as one; its `step` is the place to begin reading.
- `memory`: parameters of k lanes in one tensor (k, width), of which the lanes' are views.
- `models`: the recipe's code run once for k models, by `torch.func.vmap`.
  `rewrites`: what vmap cannot vectorize, in operations that it can.
- `optimizers`: the optimizers' steps, each with its own numbers. `stacked`: steps of one formula
  together. `formulas`: what they compute.
- `agreement`: the check, on the first batch, that a fused step is what each lane would do alone.
- `scores`: validation of all lanes at once, and the values that fused steps return.
"""
