import json
from typing import Any

import pytest

from shoal import policy as policies
from shoal.core.cluster import SlotId
from shoal.core.trial import TrialId
from shoal.policy import Fifo, Fixed, Hop


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


def test_a_policy_of_ones_own_has_no_name() -> None:
    class Mine:
        def start(self) -> None: ...
        def decide(self, view: Any, memory: Any) -> Any: ...

    with pytest.raises(ValueError, match="give the policy again"):
        policies.describe(Mine())
