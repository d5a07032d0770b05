"""How many slots of a pool each study gets. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """What a study asks of its pool.

    `priority`: a study of priority 2 gets about twice the slots of a study of priority 1.
    `least`: the fewest slots with which one of its trials can train. `most`: as many as it can use.
    `since`: when it came, in seconds; only the order counts.

    Raises:
        ValueError: a number is out of its range.
    """

    study: str
    priority: float = 1.0
    least: int = 1
    most: int = 1
    since: float = 0.0

    def __post_init__(self) -> None:
        if not self.priority > 0 or not 1 <= self.least <= self.most:
            raise ValueError(
                f"a claim needs priority > 0 and 1 <= least <= most; got {self}"
            )


def shares(
    slots: int, claims: Sequence[SlotClaim], held: Mapping[str, int]
) -> dict[str, int]:
    """How many slots each study gets, by its name.

    First each study gets its `least`, in the order of priority and then of arrival; a study for
    which too few are left gets none. Each further slot goes to the study that has fewest for its
    priority (Sainte-Laguë's rule), up to its `most`. No slot stays free that a study could use.

    `held`: what each study has now. Of studies with equal right, those that have more keep it, so
    that nothing moves without need.
    """
    order = sorted(claims, key=lambda claim: (-claim.priority, claim.since))
    given = dict.fromkeys([claim.study for claim in claims], 0)
    left = slots
    for claim in order:
        if claim.least <= left:
            given[claim.study] = claim.least
            left -= claim.least

    def right(claim: SlotClaim) -> tuple[float, int, float]:
        has = given[claim.study]
        keeps = held.get(claim.study, 0) > has
        return (2 * has + 1) / claim.priority, not keeps, claim.since

    for _ in range(left):
        hungry = [each for each in order if 0 < given[each.study] < each.most]
        if not hungry:
            break
        given[min(hungry, key=right).study] += 1
    return given
