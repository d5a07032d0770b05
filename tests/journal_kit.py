"""Journals that tests write themselves."""

import re
from dataclasses import replace
from math import inf
from typing import Any

from hypothesis import strategies as st
from simkit import SHARDS, slots, trial

from shoal.core.cluster import SlotId
from shoal.core.event import (
    Advanced,
    Commanded,
    Decided,
    Ended,
    Entry,
    Evaluated,
    Failed,
    Fed,
    Fell,
    Finished,
    Joined,
    Kept,
    Left,
    Measured,
    Opened,
    Planned,
    Remembered,
    Retired,
    Submitted,
    Unread,
)
from shoal.core.plan import Gang, Lane, solo
from shoal.core.trial import TrialId, Visit

A, B = TrialId("a"), TrialId("b")
W0, W1 = SlotId("w0"), SlotId("w1")
NAMES = st.sampled_from([A, B, TrialId("never")])
SHARD = st.sampled_from(list(SHARDS))
FINE = st.floats(0, 100)
GANGS = st.builds(
    solo, NAMES, st.sampled_from([W0, W1, SlotId("gone")]), st.integers(0, 2), SHARD, st.just(10.0)
) | st.just(Gang((Lane(A, (W0,)), Lane(B, (W1,))), fused=True))
VISITS = st.builds(
    Visit,
    st.integers(0, 2),
    SHARD,
    st.integers(0, 2),
    st.just(10),
    st.sampled_from([(), ((0, 2),)]),
)
VALUES = st.sampled_from([{"loss": 0.1 + 0.2}, {"loss": 1.0, "acc": -inf}])
CONFIGS = st.sampled_from([{"x": (1, (2.0, None))}, {"x": 2**53}, {"priority": 2.0}])
# Entries of each kind; of few trials, slots and gangs, so that many of them hit each other.
OF_KIND: dict[type[Any], st.SearchStrategy[Any]] = {
    Opened: st.builds(Opened, st.integers(1, 3), st.just(SHARDS)),
    Submitted: st.builds(
        Submitted,
        st.builds(
            lambda name, samples, config: replace(trial(name, samples), config=config),
            st.sampled_from([A, B]),
            st.sampled_from([30.0, 60.0]),
            CONFIGS,
        ),
    ),
    Retired: st.builds(Retired, NAMES),
    Advanced: st.builds(
        Advanced,
        st.dictionaries(NAMES, FINE),
        st.just({}),
        st.dictionaries(NAMES, st.tuples(VISITS)),
        st.dictionaries(NAMES, st.just({"train": 1.0})),
    ),
    Kept: st.builds(Kept, NAMES, st.integers(0, 5), FINE, st.just("a/1-1.pt")),
    Fell: st.builds(Fell, NAMES, st.integers(0, 5), FINE),
    Evaluated: st.builds(Evaluated, NAMES, st.floats(0, 3), VALUES),
    Measured: st.builds(Measured, NAMES, st.sampled_from(["m", "n"]), st.just({"rate": 2.0})),
    Ended: st.builds(Ended, GANGS, st.sampled_from(["", "no room"])),
    Finished: st.builds(Finished, NAMES),
    Failed: st.builds(Failed, NAMES, st.just("why")),
    Joined: st.builds(Joined, st.just(slots(SHARDS))),
    Left: st.builds(Left, st.frozensets(st.sampled_from([W0, W1])), st.booleans()),
    Unread: st.builds(
        Unread,
        st.sampled_from([W0, W1]),
        SHARD,
        st.just("gone"),
        st.lists(NAMES, max_size=1).map(tuple),
    ),
    Fed: st.builds(Fed, st.just("node"), st.just({"chunks": 1.0})),
    Decided: st.builds(Decided, FINE),
    Commanded: st.builds(Commanded, st.sampled_from(["stop", "slots"]), st.just("2")),
    Planned: st.builds(Planned, st.just(()), st.tuples(GANGS)),
    Remembered: st.builds(
        Remembered,
        st.sampled_from(["policy", "searcher"]),
        st.just({"rungs": (1, [2.5, None]), "worst": inf}),
    ),
}
ENTRIES: st.SearchStrategy[Entry] = st.one_of(*OF_KIND.values())


def unsealed(text: str) -> str:
    """The lines of a journal without their numbers and checksums, so that they can be changed."""
    return re.sub(r',"n":\d+,"c":"[0-9a-f]{8}"}$', "}", text, flags=re.MULTILINE)
