"""A trial's optimizers: what `configure_optimizers` may return, their schedules, their state."""
