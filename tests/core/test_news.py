"""Which trials changed: what a decider learns that remembers its last look."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.event import Evaluated, Submitted
from shoal.core.fold import fold
from shoal.core.state import News, State
from shoal.core.trial import Trial, TrialId

NAMES = st.lists(st.sampled_from([TrialId(x) for x in "abcdef"]), max_size=6)


@given(st.lists(NAMES, max_size=8), st.integers(0, 8))
def test_news_are_all_that_came_since(batches: list[list[TrialId]], at: int) -> None:
    seen = [News()]
    for batch in batches:
        seen.append(seen[-1].after(batch))
    before = min(at, len(batches))
    later = {trial for batch in batches[before:] for trial in batch}
    since = seen[-1].since(seen[before])
    assert since is not None and set(since) == later


def test_two_states_that_go_on_from_one_know_nothing_of_each_other() -> None:
    root = News().after([TrialId("a")])
    left, right = root.after([TrialId("b")]), root.after([TrialId("c")])
    assert list(left.since(root) or ()) == ["b"]
    assert right.since(left) is None and right.since(root) is None, "look at all trials again"
    assert left.since(None) is None and root.since(left) is None


def test_a_fold_tells_of_each_trial_that_an_entry_is_about() -> None:
    state = fold(State(), [Submitted(Trial(TrialId(x), 10.0, {})) for x in "abc"])
    later = fold(state, [Evaluated(TrialId("b"), 1.0, {"loss": 0.5})])
    assert list(later.news.since(state.news) or ()) == ["b"]
    assert state == fold(State(), [Submitted(Trial(TrialId(x), 10.0, {})) for x in "abc"])
