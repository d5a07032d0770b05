"""The `sim` backend: slots, time and training are computed from a profile."""
