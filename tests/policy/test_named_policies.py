import json
from pathlib import Path
from typing import Any

import pytest

from shoal import policy as policies
from shoal.core.cluster import SlotId
from shoal.core.errors import StudyError
from shoal.core.trial import TrialId
from shoal.policy import (
    Doubling,
    Elastic,
    Equi,
    Explore,
    Fifo,
    Fixed,
    Hop,
    Pack,
    PacksAsTrials,
    SrptK,
)
from shoal.policy.combine import Admit, Every, Fallback
from shoal.policy.elastic.placement import Spatial
from shoal.policy.hop.hop import RULES
from shoal.policy.registry import POLICIES, SHOWN
from shoal.study.auto import policy_of


@pytest.mark.parametrize(
    "made", [Fifo(), Hop(), Hop("random", 7, barrier=True), Fixed({TrialId("a"): SlotId("w")})]
)
def test_described_as_json_and_rebuilt(made: Any) -> None:
    data = json.loads(json.dumps(policies.describe(made)))
    assert policies.rebuild(data) == made


SPATIAL = Spatial(0.4, table=((0.0, 0.1, 0.9), (5.0, 0.05, 0.5)))


@pytest.mark.parametrize("placement", [Spatial(), SPATIAL, "spatial", "index"])
def test_a_placement_is_described(placement: Any) -> None:
    """Defect 4: it raised TypeError when the journal's head was written."""
    made = Elastic(placement=placement)
    assert policies.rebuild(json.loads(json.dumps(policies.describe(made)))) == made


@pytest.mark.parametrize(
    "made",
    [
        Elastic(objective=lambda trial, rates: rates),
        Elastic(placement=Spatial(position=lambda node: 0.0)),
        Every(60, Elastic(objective=lambda trial, rates: rates)),
    ],
)
def test_a_function_has_no_description(made: Any) -> None:
    """Defect 4: the journal's head then says that the policy is the user's own."""
    with pytest.raises(ValueError, match="give the policy again"):
        policies.describe(made)


def test_users_are_shown_names_with_a_line_each() -> None:
    assert set(SHOWN) - {"auto"} < POLICIES.keys()
    assert all(use and "\n" not in use for use in SHOWN.values())
    for name in set(SHOWN) - {"auto", "every"}:
        policies.parse(name)


@pytest.mark.parametrize("name", POLICIES)
def test_a_line_of_the_table_is_a_policy(name: str) -> None:
    entry = POLICIES[name]
    assert callable(entry.kind.decide)
    assert getattr(policies, entry.kind.__name__) is entry.kind
    if entry.auto is not None:
        made = policies.parse(name)
        assert policies.rebuild(policies.describe(made)) == made


def test_each_rule_of_hop_has_a_name() -> None:
    short = [name for name, entry in POLICIES.items() if "rule" in entry.given]
    assert short == [f"hop-{rule}" for rule in RULES]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("hop-lrw", Hop("lrw", 3)),
        ("hop(rule='lrw')", Hop("lrw", 3)),
        ("hop(seed=5)", Hop(seed=5)),
        ("hop-packs", PacksAsTrials(Hop(seed=3), fuse=False)),
        ("packed(policy=hop-quick4)", PacksAsTrials(Hop("quick4", 3), fuse=False)),
        ("pack", Pack()),
    ],
)
def test_short_names_and_what_is_usual(text: str, made: Any) -> None:
    assert policies.parse(text, {"fuse": False}, seed=3) == made


def test_a_name_alone_gives_the_defaults() -> None:
    assert policies.rebuild({"name": "hop"}) == Hop()


@pytest.mark.parametrize(
    ("data", "why"),
    [({"name": "best"}, "no policy is named 'best'"), ({"name": "hop", "x": 1}, "policy hop: ")],
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
        ("elastic(objective=efficiency)", Elastic(objective="efficiency")),
        ("every(seconds=9, policy=hop(rule=lrw))", Every(9, Hop("lrw"))),
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
        ("rounds(together=false)", "together is True or False; got 'false'"),
        ("every(seconds=1, policy=pack(refill=0))", "refill is True or False"),
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


def test_the_page_has_every_name_and_its_line() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    assert all(f"| `{name}` | {use} |" in page for name, use in SHOWN.items())


def test_the_commands_help_has_every_name() -> None:
    from shoal.cli import POLICIES
    from shoal.options import TYPED

    assert all(name in TYPED["policy"].metadata["help"] for name in SHOWN)
    listed = [f"  {name:10} {use}" for name, use in SHOWN.items()]
    assert POLICIES.splitlines()[2:] == listed


def test_a_wrong_name_lists_them() -> None:
    with pytest.raises(StudyError, match="unknown policy 'best'") as error:
        policy_of("best", True, 0)
    lines = str(error.value).splitlines()
    assert len(lines) <= 4 and max(map(len, lines)) <= 80
    assert ", ".join(SHOWN) == " ".join(line.strip() for line in lines[1:])
