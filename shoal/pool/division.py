"""How many slots of a pool each study gets, by pure functions.

`shares` divides them by priority. `divided` makes most of an objective over all studies: the second
use of BFTrainer (Liu et al., 2021, section 1), where an administrator names what is to be made more
of, with studies for its Trainers.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shoal.policy.elastic.knapsack import best_counts
from shoal.policy.elastic.objective import MADE_UP, Named, check_objective, try_objective, values_of
from shoal.policy.elastic.table import FORBIDDEN, Table
from shoal.pool.folder import SlotClaim

# From a claim and its samples/s on 1, 2, … slots to what it is worth per second on each.
Objective = Named | Callable[[SlotClaim, Sequence[float]], Sequence[float]]
# Of what a slot makes, the part by which it must make more elsewhere than by priority: a slot that
# changes hands starts anew, some 6 s of the 120 s for which a division is to hold (section 3.4).
MOVING = 0.05
# Of the whole worth, what another division must gain: measured rates are a little off.
GAIN = 0.005


def shares(slots: int, claims: Sequence[SlotClaim], current: Mapping[str, int]) -> dict[str, int]:
    """How many slots each study gets, by its name.

    First each study gets its `least`, in the order of priority and then of arrival; a study for
    which too few are left gets none. Each further slot goes to the study that has fewest for its
    priority (Sainte-Laguë's rule), up to its `most`. No slot stays free that a study could use.

    `current`: what each study has now. Of studies with equal right, those that have more keep it,
    so that nothing moves without need.
    """
    order = sorted(claims, key=lambda claim: (-claim.priority, claim.since))
    counts = dict.fromkeys([claim.study for claim in claims], 0)
    left = slots
    for claim in order:
        if claim.least <= left:
            counts[claim.study] = claim.least
            left -= claim.least

    return _dealt(counts, left, order, current)


def _dealt(
    counts: Mapping[str, int], left: int, order: Sequence[SlotClaim], current: Mapping[str, int]
) -> dict[str, int]:
    """These counts, and each slot that is left to the study with fewest for its priority."""
    counts = dict(counts)

    def right(claim: SlotClaim) -> tuple[float, int, float]:
        has = counts[claim.study]
        keeps = current.get(claim.study, 0) > has
        return (2 * has + 1) / claim.priority, not keeps, claim.since

    for _ in range(left):
        hungry = [each for each in order if 0 < counts[each.study] < each.most]
        if not hungry:
            break
        counts[min(hungry, key=right).study] += 1
    return counts


# -- an objective over studies --------------------------------------------------------------------


def try_on_claim(objective: Objective) -> None:
    """Try the objective with a made-up claim, before anything starts.

    Raises:
        ValueError: it is no name of one, or see `try_objective`.
    """
    check_objective("a pool", objective)
    if callable(objective):
        for few in (MADE_UP, MADE_UP[:1]):
            claim = SlotClaim("made-up", most=len(few), rates=few)
            try_objective(objective, claim, "a made-up study", few)


def divided(
    slots: int, claims: Sequence[SlotClaim], current: Mapping[str, int], objective: Objective | None
) -> dict[str, int]:
    """How many slots each study gets, so that all together make most of the objective.

    Whom `shares` gives slots gets its `least`; a study without measured rates gets exactly what
    `shares` gives it, as nobody knows what a slot more is worth there. The others' slots go where
    they make most, by `MOVING` more than where `shares` has them. The `current` division stays
    where the best division gains no more than `GAIN`.

    Raises:
        ValueError: the objective is a function, and does not give a number for each count.
    """
    fair = shares(slots, claims, current)
    known = [each for each in claims if each.rates and fair[each.study]]
    if objective is None or len(known) < 2:
        return fair
    names = {each.study for each in known}
    room = slots - sum(count for name, count in fair.items() if name not in names)
    least = np.array([each.least for each in known])
    gain = _gain(objective, known, [fair[each.study] for each in known], room)
    counts = least + best_counts(gain, room - int(least.sum()))
    best = {each.study: int(n) for each, n in zip(known, counts, strict=True)}
    left = room - sum(best.values())
    order = sorted(known, key=lambda claim: (-claim.priority, claim.since))
    best = _dealt(best, left, order, current)
    now = {each.study: current.get(each.study, 0) for each in known}
    fits = all(each.least <= now[each.study] <= each.most for each in known)
    if fits and sum(now.values()) == sum(best.values()):
        worth, stays = (_sum(gain, known, each) for each in (best, now))
        if worth - stays <= GAIN * abs(worth):
            best = now
    return {**fair, **best}


def _gain(
    objective: Objective, claims: Sequence[SlotClaim], fair: Sequence[int], room: int
) -> Table:
    """What each study gains by 0, 1, … slots above its least; FORBIDDEN above its most."""
    gain = np.full((len(claims), room + 1), FORBIDDEN)
    for row, claim, usual in zip(gain, claims, fair, strict=True):
        most = min(claim.most, room)
        worth = np.array(_worth(objective, claim)[claim.least - 1 : most])
        # More than was measured is worth no more.
        worth = np.append(worth, np.full(most - claim.least + 1 - len(worth), worth[-1]))
        away = np.abs(worth - worth[usual - claim.least])
        row[: len(worth)] = worth - MOVING * away
    return gain


def _worth(objective: Objective, claim: SlotClaim) -> Sequence[float]:
    """What the study is worth per second on 1, 2, … slots."""
    if callable(objective):
        return values_of(objective, claim, claim.rates, f"study {claim.study}")
    if objective == "throughput":
        return claim.rates
    weight = claim.priority if objective == "priority" else 1.0
    alone = claim.rates[claim.least - 1] / claim.least
    return [weight * rate / alone for rate in claim.rates]


def _sum(gain: Table, claims: Sequence[SlotClaim], counts: Mapping[str, int]) -> float:
    """What all studies together gain by so many slots."""
    return sum(
        float(row[counts[claim.study] - claim.least])
        for row, claim in zip(gain, claims, strict=True)
    )
