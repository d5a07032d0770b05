"""What a study made of slots that came and went, by hand-made journals and by the simulator."""

from pathlib import Path

import pytest
from report_kit import A, B, Timed, W, gang, joined, journal, trained

from shoal import reporting
from shoal.core.event import Ended, Fell, Finished, Kept, Left, Measured, Opened, Planned, Submitted
from shoal.core.trial import Trial
from shoal.engine.journal import Line
from shoal.reporting.harvest import Harvest, Yield
from shoal.reporting.slot_charts import harvest as drawing
from shoal.simulate.run import run_spec
from shoal.simulate.spec import load_spec

# 10 samples/s on one slot, 18 on two, 24 on three
SPEEDS = [{"config": {}, "figures": {"rate": 10.0, "rate@2": 18.0, "rate@3": 24.0, "up": 2.0}}]


def begun(*entries: Timed, given: bool = True, **head: object) -> list[Line]:
    """The journal of a trial; `given`: its speeds are."""
    speeds = {"given": SPEEDS} if given else {}
    submitted = Submitted(Trial(A, 1000.0, {}, widths=(1, 3)))
    return journal((0.0, submitted), *entries, head={**speeds, **head})


def harvest(*entries: Timed, given: bool = True) -> Harvest:
    found = reporting.account(begun(*entries, given=given)).harvest
    assert found is not None
    return found


# One slot for 40 s, of which the first 10 s before the trial; a second one from 10 s to 30 s. The
# trial grows at 10 s, stands for 2 s, and loses the second slot at 30 s.
GROWS: list[Timed] = [
    (0.0, joined(W[0])),
    (0.0, Planned((), (gang(A, W[0], since=1),))),
    (10.0, trained(A, 100.0, train=10.0)),
    (10.0, joined(W[1])),
    (10.0, Planned((gang(A, W[0], since=1),), (gang(A, *W[:2], since=2),))),
    (12.0, trained(A, 0.0, switch=2.0)),
    (30.0, trained(A, 324.0, train=18.0)),
    (30.0, Left(frozenset({W[1]}))),
    (40.0, trained(A, 100.0, train=10.0)),
    (40.0, Finished(A)),
]


def test_offered_used_and_the_equivalent_number_of_slots() -> None:
    found = harvest(*GROWS)
    assert found.whole.offered == pytest.approx(60.0)
    assert found.whole.used == pytest.approx(60.0)
    assert found.whole.slots == pytest.approx(1.5)
    assert found.nodes == pytest.approx(40.0), "two slots, but one node"


def test_u_is_against_dedicated_slots_by_the_measured_speeds() -> None:
    found = harvest(*GROWS)
    assert found.whole.useful == pytest.approx(52.4)
    # one and a half slots: 1 for the first, half of the 0.8 that the second gains
    assert found.whole.reference == pytest.approx(40 * 1.4)
    assert found.whole.efficiency == pytest.approx(52.4 / 56)
    # standing still: two slots for two seconds
    assert found.whole.rescaled == pytest.approx(4.0)
    assert found.whole.returned == pytest.approx(52.4 / 4)
    assert found.whole.preempted == 0.0, "it went on with one slot"


def test_bins_are_of_equal_length() -> None:
    found = harvest(*GROWS)
    assert [(each.start, each.end) for each in found.bins] == [
        (0, 10),
        (10, 20),
        (20, 30),
        (30, 40),
    ]
    assert [each.offered for each in found.bins] == pytest.approx([10, 20, 20, 10])
    assert [each.slots for each in found.bins] == pytest.approx([1, 2, 2, 1])
    assert [each.useful for each in found.bins] == pytest.approx([10, 14.4, 18, 10])
    assert [each.reference for each in found.bins] == pytest.approx([10, 18, 18, 10])
    assert [each.rescaled for each in found.bins] == pytest.approx([0, 4, 0, 0])
    assert [each.efficiency for each in found.bins] == pytest.approx([1, 0.8, 1, 1])
    assert found.bins[0].returned is None, "nothing was rescaled"


def test_what_a_trial_loses_with_its_only_slot() -> None:
    """It was durable at 10 s, reported at 20 s, and its slot leaves at 25 s."""
    found = harvest(
        (0.0, joined(W[0])),
        (0.0, Planned((), (gang(A, W[0], since=1),))),
        (10.0, trained(A, 100.0, train=10.0)),
        (10.0, Kept(A, 0, 100.0)),
        (20.0, trained(A, 100.0, train=10.0)),
        (25.0, Left(frozenset({W[0]}), died=True)),
        (25.0, Fell(A, 0, 100.0)),
        (35.0, joined(W[1])),
        (35.0, Planned((), (gang(A, W[1], since=2),))),
        (40.0, trained(A, 50.0, train=5.0)),
    )
    assert found.whole.offered == pytest.approx(30.0)
    assert found.whole.slots == pytest.approx(0.75)
    assert found.whole.useful == pytest.approx(15.0)
    assert found.whole.preempted == pytest.approx(10.0 + 5.0)
    assert found.whole.rescaled == 0.0
    assert found.whole.efficiency == pytest.approx(15.0 / 30.0)


def test_work_lost_in_a_crash_of_the_run_is_not_lost_to_preemption() -> None:
    found = harvest(
        *GROWS[:7],
        (31.0, Opened(2, {}, {})),
        (31.0, Fell(A, 0, 0.0)),
        (31.0, joined(W[0])),
        (35.0, trained(A, 0.0)),
    )
    assert found.whole.preempted == 0.0
    assert found.whole.useful == pytest.approx(0.0)


def test_idle_slots_are_offered_and_not_used() -> None:
    found = harvest(
        (0.0, joined(W[0])),
        (0.0, Planned((), (gang(A, W[0], since=1),))),
        (10.0, joined(W[1])),
        (20.0, trained(A, 200.0, train=20.0)),
        (20.0, Ended(gang(A, W[0], since=1))),
        (20.0, Finished(A)),
        (30.0, trained(B, 0.0)),
    )
    assert (found.whole.offered, found.whole.used) == (50.0, 20.0)
    # after the trial's end nobody could have used dedicated slots either
    assert found.whole.reference == pytest.approx(20 * (1 + 0.8 * 2 / 3))


def stood(address: str | None, *entries: Timed) -> list[Line]:
    """The journal of a real run on slots of its own (None), of a cluster or of a pool."""
    return begun(*entries, options={"address": address})


# A second node is there from 100 s to 300 s of 400 s.
NODES: list[Timed] = [
    (0.0, joined(W[0], node="n1")),
    (0.0, Planned((), (gang(A, W[0], since=1),))),
    (100.0, trained(A, 100.0, train=100.0)),
    (100.0, joined(W[1], node="n2")),
    (300.0, Left(frozenset({W[1]}))),
    (400.0, trained(A, 300.0, train=300.0)),
]
# The second slot of a node is opened 5 s after the first, and dies 100 s before the end.
OPENED: list[Timed] = [
    (0.0, joined(W[0], node="n1")),
    (0.0, Planned((), (gang(A, W[0], since=1),))),
    (5.0, joined(W[1], node="n1")),
    (300.0, Left(frozenset({W[1]}), died=True)),
    (400.0, trained(A, 400.0, train=400.0)),
]


@pytest.mark.parametrize(
    ("address", "entries", "is_one"),
    [
        ("auto", NODES, True),
        ("10.0.0.1:6379", NODES, True),
        (None, NODES, False),
        ("pool:/shared/pool", NODES, False),
        ("auto", OPENED, False),
        (None, OPENED, False),
    ],
)
def test_only_nodes_of_a_joined_cluster_are_harvested(
    address: str | None, entries: list[Timed], is_one: bool
) -> None:
    """No U and no share that was lost in other studies, whose slots come and go as they want."""
    lines = stood(address, *entries)
    assert (reporting.account(lines).harvest is not None) == is_one
    said = [
        line
        for line in reporting.status_lines(reporting.summary(lines))
        if line.startswith("harvest")
    ]
    assert bool(said) == is_one
    page = reporting.page(lines, "study")
    assert ('id="harvest"' in page) == is_one and ("preemption" in page) == is_one


def test_slots_that_stay_are_no_harvest() -> None:
    stays = begun(*GROWS[:3], (20.0, trained(A, 100.0, train=10.0)))
    assert reporting.account(stays).harvest is None
    again = begun(
        *GROWS[:3],
        (12.0, Left(frozenset({W[0]}), died=True)),
        (15.0, joined(W[0])),  # its process was started anew
        (20.0, trained(A, 0.0)),
    )
    assert reporting.account(again).harvest is None
    assert 'id="harvest"' not in reporting.page(stays, "study")
    assert reporting.summary(stays)["harvest"] is None


def test_without_speeds_there_is_no_u() -> None:
    found = harvest(*GROWS, given=False)
    assert found.whole.efficiency is None and found.whole.returned is None
    assert found.whole.slots == pytest.approx(1.5)
    page = reporting.page(begun(*GROWS, given=False), "study")
    assert 'id="harvest"' in page


def test_speeds_may_be_measured() -> None:
    measured = Measured(A, "s", {"rate": 10.0, "rate@2": 18.0})
    found = harvest((0.0, measured), *GROWS, given=False)
    assert found.whole.efficiency == pytest.approx(52.4 / 56)


def test_the_return_is_drawn_if_there_is_one() -> None:
    lost = (*GROWS[:3], (20.0, Left(frozenset({W[0]}), died=True)), (30.0, trained(B, 0.0)))
    for told, wanted in ((GROWS, True), (lost, False)):
        figure = drawing(reporting.account(begun(*told)))
        assert figure is not None
        names = {trace["name"] for trace in figure["data"]}
        assert "U" in names and ("return" in names) is wanted
        assert figure["layout"]["yaxis3"]["visible"] is wanted


def test_a_long_study_has_bins_of_six_hours() -> None:
    hour = 3600.0
    found = harvest(
        (0.0, joined(W[0])),
        (0.0, Planned((), (gang(A, W[0], since=1),))),
        (10 * hour, joined(W[1])),
        (25 * hour, trained(A, 250 * hour, train=25 * hour)),
    )
    assert [each.end / hour for each in found.bins] == [6, 12, 18, 24, 25]
    offered = [each.offered / hour for each in found.bins]
    assert offered == pytest.approx([6, 8, 12, 12, 2])
    assert sum(each.useful or 0.0 for each in found.bins) == pytest.approx(25 * hour)


def test_the_page_the_summary_and_the_status_show_it() -> None:
    lines = begun(*GROWS)
    page = reporting.page(lines, "study")
    assert "<h2>Harvest</h2>" in page and '"harvest"' in page
    assert "94 %" in page and "in bins of 10 s" in page
    found = reporting.summary(lines)
    assert found["harvest"]["efficiency"] == pytest.approx(52.4 / 56)
    assert len(found["harvest"]["bins"]) == 4
    (said,) = [x for x in reporting.status_lines(found) if x.startswith("harvest")]
    assert said == (
        "harvest  60 s of slots offered, 100 % used; as 1.5 slots that stay; U 94 %; "
        "lost 0 % to preemption, 6.7 % to rescaling"
    )


# -- against the simulator -------------------------------------------------------------------------

SUMMIT = Path(__file__).parents[4] / "shared" / "data" / "bftrainer"
SPEC = """
[log]
file = "{log}"
{more}
[[trials]]
count = 40
samples = 40e6
widths = [1, 16]
every = 60
[[profile]]
points = {{ 1 = 2800, 2 = 5300, 4 = 10000, 8 = 20400, 16 = 38900 }}
up = {up}
down = {down}
[policies.elastic]
admit = 10
"""


def simulated(tmp_path: Path, log: Path, more: str, up: float, down: float) -> Yield:
    """What the report says of a simulated harvest; against what the simulator counted."""
    text = SPEC.format(log=log, more=more, up=up, down=down)
    (tmp_path / "spec.toml").write_text(text)
    spec = load_spec(tmp_path / "spec.toml")
    figures, lines = run_spec(spec, spec.policies["elastic"], keep=True)
    assert lines is not None
    found = reporting.account(lines.lines).harvest
    assert found is not None
    whole = found.whole
    assert whole.used / whole.offered == pytest.approx(figures["slots_used"], rel=1e-6)
    assert whole.useful == pytest.approx(figures["samples"] / 2800, rel=1e-6)
    parts = sum(each.offered for each in found.bins)
    assert parts == pytest.approx(whole.offered)
    return whole


def test_of_a_made_up_log(tmp_path: Path) -> None:
    from shoal.simulate.log_files import write_log
    from shoal.simulate.synthetic_log import Machine, synthetic

    log = tmp_path / "log.csv"
    machine = Machine(racks=6, per_rack=10, idle=0.2)
    write_log(synthetic(machine, hours=2, seed=3), log)
    free = simulated(tmp_path, log, "", 0.0, 0.0)
    costly = simulated(tmp_path, log, "", 18.0, 12.0)
    assert free.rescaled == 0.0 < costly.rescaled
    assert costly.efficiency is not None and free.efficiency is not None
    assert 0.3 < costly.efficiency < free.efficiency < 1.0
    assert costly.offered == free.offered


@pytest.mark.skipif(not SUMMIT.is_dir(), reason="the log of Summit is not shared here")
@pytest.mark.nightly
def test_of_a_slice_of_summit(tmp_path: Path) -> None:
    from shoal.simulate.log_files import read_log

    more = f'nodes = "{SUMMIT}/nodes.csv"\ncount = 1024\nbegin = 60000\nhours = 6'
    log = SUMMIT / "summit_events.csv.gz"
    whole = simulated(tmp_path, log, more, 18.0, 12.0)
    names = [line.split(",")[1] for line in (SUMMIT / "nodes.csv").read_text().split()]
    nodes = names[1:] if "name" in names[0] else names
    end = 60000 + whole.end  # when all trials have ended
    part = read_log(log, nodes).subset(0, 1024).window(60000, end)
    assert whole.offered == pytest.approx(part.node_seconds, rel=1e-3)
    assert whole.efficiency is not None and 0.5 < whole.efficiency < 0.95
