"""Which lanes of a gang had no room, by the errors that their slot gave."""

from collections.abc import Mapping

from shoal.core.plan import Gang
from shoal.core.trial import TrialId
from shoal.train.recipe.unit import OutOfMemory, PackRefused, TrialError

Errors = Mapping[TrialId, TrialError]


def refused_lanes(failed: Errors) -> dict[TrialId, PackRefused]:
    """The lanes that the slot did not begin."""
    return {trial: error for trial, error in failed.items() if isinstance(error, PackRefused)}


def crowded_lanes(gang: Gang, failed: Errors) -> dict[TrialId, OutOfMemory]:
    """The lanes that may have room another time.

    They ran out of memory beside other lanes, or beside models at rest that were given up since.
    """
    found: dict[TrialId, OutOfMemory] = {}
    in_company = len(gang.lanes) > 1
    for trial, error in failed.items():
        if isinstance(error, OutOfMemory) and (in_company or error.freed):
            found[trial] = error
    return found
