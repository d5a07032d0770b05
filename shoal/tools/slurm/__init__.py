"""What a user asks of Slurm beside a run: the batch script, and to go on after the time limit."""
