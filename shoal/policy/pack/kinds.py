"""Which waiting trials may share a slot: equal in what must be, and faster together than apart."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice

from shoal.core.cluster import Slot
from shoal.core.state import News, View
from shoal.core.trial import TrialId, Value
from shoal.policy.pack.company import by_key, must_be_alone
from shoal.policy.pack.figures import Figures

KINDS = 64  # of one graph, with different figures, that a trial is compared with
NEAR = 4  # of these kinds, the nearest in configuration
Kind = list[TrialId]
Graph = tuple[Value, ...]  # values in a configuration that make the model's graph
Trials = Sequence[TrialId]
Names = Sequence[str]


def graph(view: View, trial: TrialId, same: Names) -> Graph:
    """A key, equal for trials that may share a slot; `same`: the names in a config that tell."""
    if must_be_alone(view, trial):
        return (trial,)
    config = view.trials[trial].config
    return tuple(config.get(name) for name in same)


def distance(one: Mapping[str, Value], other: Mapping[str, Value]) -> int:
    """The number of values that differ: configurations much alike gain most by company."""
    return sum(1 for name, value in other.items() if one.get(name) != value)


def alike(figures: Figures, trials: Trials, same: Names) -> list[Kind]:
    """The trials in kinds by their graphs alone."""
    kinds = by_key(trials, lambda trial: graph(figures.view, trial, same))
    return list(kinds.values())


@dataclass(slots=True)
class Kinds:
    """Trials in kinds such that each gains with the first of its kind.

    Trials of one form are of one kind also where two of them gain nothing together, if as many as
    may be packed (`most`) do. `same`: see `graph`.
    """

    figures: Figures
    same: Names
    most: int
    crowds: set[Hashable]
    news: News
    kinds: dict[Graph, "_KindsOfGraph"] = field(default_factory=dict)
    trials: dict[TrialId, None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, figures: Figures, trials: Trials, same: Names, most: int, before: "Kinds | None"
    ) -> "Kinds":
        """The kinds of these trials; `before`: those of others, from which they may follow."""
        crowds = _crowds(figures, trials, most)
        news = figures.view.news
        kinds = before
        if kinds is None or not kinds._leads_to(figures, trials, crowds):
            kinds = cls(figures, same, most, crowds, news)
        else:
            kinds._keep(trials)
            kinds.news = news
        for trial in islice(trials, len(kinds.trials), None):
            kinds._add(trial)
        return kinds

    def all(self) -> list[Kind]:
        """The kinds, in the order of their first trials within each graph."""
        return [kind for kinds in self.kinds.values() for kind in kinds.all]

    def _leads_to(self, figures: Figures, trials: Trials, crowds: set[Hashable]) -> bool:
        """Whether the kinds of these trials are those of before without some, and with others.

        That is so where the first of each kind is still there, or another that does as well; all
        that are still there are as they were; and the others come after them.
        """
        changed = figures.view.news.since(self.news)
        if figures is not self.figures or crowds != self.crowds or changed is None:
            return False
        here = set(trials)
        if any(trial in here and trial in self.trials for trial in changed):
            return False
        stay = [trial for trial in self.trials if trial in here]
        if stay != trials[: len(stay)]:
            return False
        return all(kinds.hold_with(here) for kinds in self.kinds.values())

    def _keep(self, trials: Trials) -> None:
        """Take out all trials but these."""
        here = set(trials)
        self.trials = {trial: None for trial in self.trials if trial in here}
        for kinds in self.kinds.values():
            kinds.keep(here)
        place = {trial: i for i, trial in enumerate(self.trials)}
        left = [(graph, kinds) for graph, kinds in self.kinds.items() if kinds.all]
        self.kinds = dict(sorted(left, key=lambda item: place[item[1].all[0][0]]))

    def _add(self, trial: TrialId) -> None:
        """Put one more trial into the kind that it suits."""
        self.trials[trial] = None
        key = graph(self.figures.view, trial, self.same)
        kinds = self.kinds.setdefault(key, _KindsOfGraph(self.figures))
        kinds.add(trial, crowded=self.figures.form(trial) in self.crowds)


def _crowds(figures: Figures, trials: Trials, most: int) -> set[Hashable]:
    """Forms of which as many as may be packed go faster together."""
    if not figures.fuse:
        return set()
    forms: dict[Hashable, list[TrialId]] = {}
    for trial in trials:
        forms.setdefault(figures.form(trial), []).append(trial)
    forms.pop(None, None)

    slot = any_slot(figures.view)
    crowds = set()
    for form, alike in forms.items():
        if len(alike) > 2 and figures.gains(slot, alike[:most]):
            crowds.add(form)
    return crowds


@dataclass(slots=True)
class _KindsOfGraph:
    """The kinds of one graph.

    `by_form`: the first kind whose first trial has that form; `by_number`: whose first trial has
    these figures. More kinds with the same figures exist only where two such trials gain nothing.
    """

    figures: Figures
    all: list[Kind] = field(default_factory=list)
    by_form: dict[Hashable, Kind] = field(default_factory=dict)
    by_number: dict[int, Kind] = field(default_factory=dict)

    def add(self, trial: TrialId, crowded: bool) -> None:
        """Put the trial into the first kind that it suits, or into a new one."""
        kind = self.by_form.get(self.figures.form(trial)) if crowded else None
        if kind is None:
            kind = self._with_gain(trial)
        if kind is None:
            kind = self._new(trial)
        kind.append(trial)

    def hold_with(self, here: Collection[TrialId]) -> bool:
        """Whether those that are here have these kinds, if all others go.

        Who else is there tells none its kind, but the first of each kind does. One with the same
        figures does as well, where no other figures are there: then nobody asks who is nearer.
        """
        for kind in self.all:
            if kind[0] not in here:
                if len(self.by_number) > 1:
                    return False
                first = next((trial for trial in kind if trial in here), None)
                if first is not None and self.figures.number(first) not in self.by_number:
                    return False
        return True

    def keep(self, here: Collection[TrialId]) -> None:
        """Take out all trials but these, with whom the kinds hold."""
        for kind in self.all:
            kind[:] = [trial for trial in kind if trial in here]
        if all(self.all):
            return
        self.all = [kind for kind in self.all if kind]
        self.by_number = {number: self.all[0] for number in self.by_number if self.all}
        self.by_form = {}
        for kind in self.all:
            self.by_form.setdefault(self.figures.form(kind[0]), kind)

    def _new(self, trial: TrialId) -> Kind:
        """An empty kind for this trial to be the first of."""
        kind: Kind = []
        self.all.append(kind)
        self.by_form.setdefault(self.figures.form(trial), kind)
        # Note the new kind by its first trial's number, unless there are many already.
        if len(self.by_number) < KINDS:
            self.by_number.setdefault(self.figures.number(trial), kind)
        return kind

    def _with_gain(self, trial: TrialId) -> Kind | None:
        """The nearest kind whose first trial gains by this one's company."""
        slot = any_slot(self.figures.view)
        for kind in self._nearest(trial):
            if self.figures.gains(slot, (kind[0], trial)):
                return kind
        return None

    def _nearest(self, trial: TrialId) -> list[Kind]:
        """The few kinds whose first trials have the most similar configurations."""
        kinds = list(self.by_number.values())
        if len(kinds) < 2:
            return kinds
        return nsmallest(NEAR, kinds, key=lambda kind: self._far(kind, trial))

    def _far(self, kind: Kind, trial: TrialId) -> int:
        """How far the trial's configuration is from that of the kind's first trial."""
        trials = self.figures.view.trials
        return distance(trials[kind[0]].config, trials[trial].config)


def any_slot(view: View) -> Slot:
    """Some slot, for questions to the profile whose answer is the same for all."""
    return next(iter(view.slots.values()))
