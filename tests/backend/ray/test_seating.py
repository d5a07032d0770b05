"""Who is told to measure the links between nodes."""

from types import SimpleNamespace
from typing import Any

from shoal.backend.ray.wide_gangs import WideGangs


def asked(*generations: tuple[str, ...]) -> list[bool]:
    """Whether each generation in turn, of processes at these hosts, measures links."""
    unused: Any = None
    gangs = WideGangs(unused, "gloo")
    lane: Any = SimpleNamespace(trial="a", holders=set())
    found = []
    for hosts in generations:
        who: Any = [Process(f"{host}:{port}") for port, host in enumerate(hosts)]
        seats = gangs._seated(lane, who, ()).values()
        (links,) = {seat.links for seat in seats}
        assert [seat.host for seat in seats] == list(hosts)
        found.append(links)
    return found


class Process:
    """A slot's process, by where it is met."""

    def __init__(self, meeting: str) -> None:
        self.meeting = meeting


def test_the_first_lane_over_several_nodes_measures_their_links() -> None:
    lanes = [("10.0.0.1", "10.0.0.1"), ("10.0.0.1", "10.0.0.2"), ("10.0.0.1",) * 2]
    assert asked(*lanes, ("10.0.0.2", "10.0.0.3")) == [False, True, False, False]


def test_within_a_node_there_are_no_links_to_measure() -> None:
    assert asked(("10.0.0.1",), ("10.0.0.1",) * 4) == [False, False]
