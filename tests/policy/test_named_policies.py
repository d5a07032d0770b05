import json
from typing import Any

import pytest

from shoal import policy as policies
from shoal.core.cluster import SlotId
from shoal.core.trial import TrialId
from shoal.policy import Doubling, Equi, Explore, Fifo, Fixed, Hop, SrptK
from shoal.policy.combine import Admit, Every, Fallback


@pytest.mark.parametrize("made", [Fifo(), Hop(), Hop("random", 7, barrier=True), Fixed({TrialId("a"): SlotId("w")})])
def test_described_as_json_and_rebuilt(made: Any) -> None:
    data = json.loads(json.dumps(policies.describe(made)))
    assert policies.rebuild(data) == made


def test_a_name_alone_gives_the_defaults() -> None:
    assert policies.rebuild({"name": "hop"}) == Hop()


@pytest.mark.parametrize(
    ("data", "why"), [({"name": "best"}, "no policy is named 'best'"), ({"name": "hop", "x": 1}, "policy hop: ")]
)
def test_what_cannot_be_rebuilt(data: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        policies.rebuild(data)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("equi", Equi()),
        ("explore(seconds=60, most=4)", Explore(60, 4)),
        ("doubling(every=600, foretell='loss')", Doubling(every=600, foretell="loss")),
        ("srpt-k(slots=2)", SrptK(2)),
        ("every(seconds=600, policy=admit(most=3, policy=srpt-k))", Every(600, Admit(3, SrptK()))),
        ("fallback(policy=hop(rule='lrw'), other=fifo)", Fallback(Hop("lrw"), Fifo())),
    ],
)
def test_as_a_user_names_it(text: str, made: Any) -> None:
    assert policies.parse(text) == made


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("best", "no policy is named 'best'"),
        ("explore(60)", "a name with named arguments"),
        ("explore(minutes=1)", "policy explore: "),
        ("every(seconds=1, policy=best)", "no policy is named 'best'"),
        ("explore(seconds=open('x'))", "a name with named arguments"),
        ("explore(seconds=1+1j*[])", "plain values"),
        ("explore(", "is named as"),
    ],
)
def test_what_names_no_policy(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        policies.parse(text)


def test_a_policy_of_ones_own_has_no_name() -> None:
    class Mine:
        def start(self) -> None: ...
        def decide(self, view: Any, memory: Any) -> Any: ...

    with pytest.raises(ValueError, match="give the policy again"):
        policies.describe(Mine())
