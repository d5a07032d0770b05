"""Looking ahead: what a policy would take for the work in view."""

from math import inf
from typing import Any

from shoal.backend.sim import Sim
from shoal.core.check import PlanError
from shoal.core.event import Entry, Kept
from shoal.core.plan import Proposal
from shoal.core.ports import Policy, Profile
from shoal.core.state import State, View
from shoal.core.trial import Seconds
from shoal.engine.journal import Journal
from shoal.engine.run import Stalled, run


def ahead(view: View, policy: Policy[Any], truth: Profile | None = None) -> Seconds:
    """Seconds until the trials in view are done under this policy, as simulated; infinity where it gets stuck.

    Nobody comes or goes meanwhile; what runs now is stopped first, without loss. `truth`: the profile taken as true;
    None: what the view believes.
    """
    believed = view.profile if truth is None else truth
    state = State(
        shards=view.shards,
        known=view.known,
        trials=view.trials,
        ended=view.ended,
        done=view.done,
        visits=view.visits,
        pending=view.pending,
        scores=view.scores,
        kept={t: Kept(t, len(view.visits[t]), view.done[t]) for t in view.trials},
    )
    sim = Sim(believed, view.slots.values(), shards=view.shards, checkpoint_every=0 if not view.shards else inf, state=state)
    end = inf

    def watch(now: Seconds, entries: tuple[Entry, ...], then: State) -> None:
        nonlocal end
        if not then.trials:
            end = min(end, now)

    try:
        run(_Nobody(), policy, sim, lambda then: believed, Journal(), state, watch=[watch])
    except (Stalled, PlanError):
        return inf
    return end


class _Nobody:
    """A searcher that wants nothing."""

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        return Proposal(), None
