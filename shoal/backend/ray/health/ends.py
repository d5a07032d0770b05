"""How nodes of the cluster came to their end."""

from shoal.backend.ray.cluster import all_nodes

# Reasons of a node's end in Ray's numbers: it was told to end, or drained.
IN_ORDER = (1, 3, 4)


def taken_back(node: str) -> bool:
    """Whether the node left in good order, as where a batch system takes it back. `node`: its id.

    That is no trial's doing. One that crashed or hangs did not; what ran there may have done it.
    """
    return any(
        each["NodeID"] == node and not each["Alive"] and each["DeathReason"] in IN_ORDER
        for each in all_nodes()
    )
