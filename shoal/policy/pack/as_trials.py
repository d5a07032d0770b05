"""Packs as trials: any policy, with trials that go faster together moved as one.

Ours: Pack's sharing (Liu et al. 2020) under another policy's plan, such as Cerebro's hopping. The
policy sees one trial for each pack, its first, with the pack's speed and memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from shoal.core.plan import Plan
from shoal.core.ports import Policy
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.idle import queue
from shoal.policy.pack.as_one import PacksAsOne
from shoal.policy.pack.company import Packs
from shoal.policy.pack.forming import Forming, kept, one_for_each_slot

WINDOW = 256  # trials, from which on the policy sees the first ones only: a decision has a bound


@dataclass(frozen=True, slots=True)
class PacksAsTrials:
    """The policy, over packs of trials at the same visits that go faster together.

    `most`: trials in a pack; packs are small enough that every slot has one. `fuse`: lanes of one
    graph may train in one step. A pack stays together until its trials end or differ in their
    visits, or they turn out not to go faster, or to need more memory than a slot has, or slots
    would be idle.

    Where the policy fixes each trial's order of shards (`Hop.order`), all of a pack have that of
    its first trial from then on. So an interrupted run equals the undisturbed one, whichever trial
    is the first later. Of very many trials the policy sees the first ones only, the others as these
    end.

    Raises:
        ValueError: packs of less than one.
    """

    policy: Policy[Any]
    most: int = 32
    fuse: bool = True

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"a pack has at least one trial; got most={self.most!r}")

    def start(self) -> list[Any]:
        return [[], self.policy.start()]

    def decide(self, view: View, memory: Sequence[Any]) -> tuple[Plan, list[Any]]:
        if not view.slots:
            return Plan(), [*memory]  # how large packs are to be depends on them
        before, inner = memory
        window = max(WINDOW, 2 * self.most * len(view.slots))
        view = _admitted(view, before, window)
        packs = self._formed(view, before, inner)

        seen = PacksAsOne(view, packs, self.fuse)
        plan, inner = self.policy.decide(seen.view(), inner)
        if packs != before:
            inner = self._followed(inner, packs)
        gangs = frozenset(map(seen.whole, plan.gangs))
        return Plan(gangs, plan.wake_at), [packs, inner]

    def _formed(self, view: View, before: Packs, inner: Any) -> Packs:
        """The packs of now: what is left of those of before, and the trials that were in none."""

        def order(trial: TrialId) -> object:
            return self._order(inner, trial)

        forming = Forming(view, self.most, self.fuse, order)
        packs = forming.with_fresh(kept(view, before, self.fuse))
        return one_for_each_slot(view, packs)

    def _order(self, inner: Any, trial: TrialId) -> object:
        """What is equal for trials that visit shards in the same order, from the policy's memory.

        None where the policy fixes no order, or has not fixed this trial's yet.
        """
        order = getattr(self.policy, "order", None)
        if order is None:
            return None
        return order(inner, trial)

    def _followed(self, inner: Any, packs: Packs) -> Any:
        """The policy's memory, in which all of a pack have the order that its first trial has."""
        for pack in packs:
            new = self._newcomers(inner, pack)
            if new:
                inner = self.policy.follow(inner, new, pack[0])  # type: ignore[attr-defined]
        return inner

    def _newcomers(self, inner: Any, pack: Sequence[TrialId]) -> Sequence[TrialId]:
        """The trials of the pack without an order, where its first one has an order."""
        if self._order(inner, pack[0]) is None:
            return []
        return [trial for trial in pack[1:] if self._order(inner, trial) is None]


def _admitted(view: View, packs: Packs, most: int) -> View:
    """The view with the first so many trials, and those that run or are in a pack already."""
    if len(view.trials) <= most:
        return view
    first = islice(queue(view), most)
    return _with_only(view, chain(first, *packs, view.running))


def _with_only(view: View, trials: Iterable[TrialId]) -> View:
    """The view with those of these trials that it has, in the order given."""
    names = dict.fromkeys(trials)
    seen = {name: view.trials[name] for name in names if name in view.trials}
    return replace(view, trials=seen)
