"""The thread that harvests, on a batch system made up here."""

import threading
import time
from collections.abc import Iterable, Sequence

import pytest
from slurm_kit import wait_for

from shoal.harvest.harvester import Harvester
from shoal.harvest.observer import Observer
from shoal.harvest.scheduler import IdleNode, Pilot, SchedulerError, Sighting

COMMAND = ("train",)


class MadeUp:
    """Nodes that are idle; pilots begin at once, and end a look after they were cancelled."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = set(nodes)
        self.pilots: dict[str, str] = {}
        self.leaving: set[str] = set()
        self.looks: list[float] = []
        self.calls: list[tuple[object, ...]] = []
        self.failing = False
        self.refused: set[str] = set()
        self.lock = threading.Lock()

    def look(self) -> Sighting:
        with self.lock:
            self.looks.append(time.monotonic())
            if self.failing:
                raise SchedulerError("squeue failed: no answer")
            seen = Sighting(
                time.time(),
                {name: IdleNode(name) for name in self.nodes - set(self.pilots.values())},
                tuple(Pilot(number, node) for number, node in self.pilots.items()),
            )
            for number in self.leaving:
                self.pilots.pop(number, None)
            return seen

    def submit(self, node: str, minutes: int, command: Sequence[str]) -> str:
        with self.lock:
            self.calls.append(("submit", node, minutes, tuple(command)))
            if node in self.refused:
                raise SchedulerError("sbatch failed: not for you")
            number = str(len(self.calls))
            self.pilots[number] = node
            return number

    def cancel(self, pilots: Iterable[str]) -> None:
        with self.lock:
            if self.failing:
                raise SchedulerError("scancel failed: no answer")
            found = tuple(pilots)
            if found:
                self.calls.append(("cancel", *found))
            self.leaving |= set(found)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def site() -> MadeUp:
    return MadeUp("n1", "n2")


def harvester(site: MadeUp, said: list[str], tick: float = 0.01) -> Harvester:
    return Harvester(site, Observer(), COMMAND, tick, said.append)


def test_idle_nodes_get_a_pilot_each_and_all_end_with_the_harvest(
    site: MadeUp, said: list[str]
) -> None:
    with harvester(site, said):
        wait_for("pilots", lambda: len(site.pilots) == 2)
        wait_for("the news of them", lambda: "pilot 2 runs at n2" in said)
        assert {call[1:] for call in site.calls} == {("n1", 60, COMMAND), ("n2", 60, COMMAND)}
    assert site.pilots == {}
    assert site.calls[2:] == [("cancel", "1", "2")]
    names = [thread.name for thread in threading.enumerate()]
    assert "shoal-harvester" not in names


def test_a_second_look_at_new_idle_nodes_comes_soon_but_never_a_third(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Growing(MadeUp):
        def look(self) -> Sighting:
            found = super().look()
            self.nodes.add(f"n{len(self.looks)}-new")
            return found

    monkeypatch.setattr("shoal.harvest.harvester.SECOND", 0.01)
    site = Growing("n1", "n2")
    with harvester(site, said, tick=600):
        wait_for("pilots", lambda: len(site.pilots) == 2)
        time.sleep(0.3)
        # A node is newly idle at the second look, too.
        assert len(site.looks) == 2


def test_a_pilot_that_ended_is_followed_by_another(site: MadeUp, said: list[str]) -> None:
    with harvester(site, said):
        wait_for("pilots", lambda: len(site.pilots) == 2)
        with site.lock:
            site.pilots.pop("1")
        wait_for("another pilot", lambda: len(site.pilots) == 2)
    assert "pilot 1 has ended" in said


def test_it_survives_a_squeue_that_fails_and_asks_less_often(site: MadeUp, said: list[str]) -> None:
    site.failing = True
    with harvester(site, said, tick=0.02):
        wait_for("failures", lambda: len(site.looks) >= 5)
        gaps = [later - former for former, later in zip(site.looks, site.looks[1:])]
        assert gaps[3] > 0.02 * 2**4 * 0.75  # tick, doubled four times, less a draw
        site.failing = False
        wait_for("pilots", lambda: len(site.pilots) == 2)
    assert "squeue failed: no answer; the next look is in 0 s" in said
    assert any("answers again" in each for each in said)


def test_a_node_that_is_refused_holds_up_no_other(site: MadeUp, said: list[str]) -> None:
    site.refused = {"n1"}
    with harvester(site, said):
        wait_for("the other pilot", site.pilots.values)
        wait_for("looks", lambda: len(site.looks) > 8)
        assert list(site.pilots.values()) == ["n2"]
    refused = [call for call in site.calls if call[:2] == ("submit", "n1")]
    assert len(refused) == 1
    assert any("no pilot for n1" in each and "not for you" in each for each in said)


def test_a_slow_batch_system_is_asked_less_often(said: list[str]) -> None:
    class Slow(MadeUp):
        def look(self) -> Sighting:
            found = super().look()
            time.sleep(0.05)
            return found

    site = Slow("n1")
    with harvester(site, said, tick=0.0):
        wait_for("looks", lambda: len(site.looks) >= 3)
    assert site.looks[1] - site.looks[0] > 0.05 * 9


def test_the_end_does_not_hang_on_a_batch_system_that_fails(site: MadeUp, said: list[str]) -> None:
    with harvester(site, said):
        wait_for("pilots", lambda: len(site.pilots) == 2)
        site.failing = True
    assert "the pilots could not be cancelled: scancel failed: no answer" in said
