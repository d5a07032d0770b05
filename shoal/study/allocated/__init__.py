"""A run inside an allocation of Slurm: its nodes, its time limit, and how it goes on."""
