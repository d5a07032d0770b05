"""Ending a process that hangs, on whatever node it is."""

import ray

from shoal.backend.ray.cluster import here, only_at
from shoal.backend.ray.node.process import end


def end_at(node: str, pid: int, born: str) -> None:
    """End the process at the node at once. Ray itself only asks it to end, which it may not hear.

    `born`: when it began; a process of that number that began at another time is left alone.
    """
    if node == here():
        end(pid, born)
        return
    task = ray.remote(num_cpus=0, max_retries=0)(end)
    task.options(scheduling_strategy=only_at(node)).remote(pid, born)
