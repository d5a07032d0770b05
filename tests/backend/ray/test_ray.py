"""The ray backend, with slots that really train."""

import os
import re
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray_kit import SEED, Bench, Given, Tiny, trials_of

from shoal.backend.positions import Positions
from shoal.backend.ray.backend import Ray
from shoal.backend.ray.setup import RaySetup
from shoal.backend.ray.slot_process import Call
from shoal.core.cluster import ShardId, SlotId
from shoal.core.event import Advanced, Decided, Fell, Joined, Kept, Left, Measured
from shoal.core.plan import solo
from shoal.core.state import State, View
from shoal.core.trial import Trial, TrialId
from shoal.core.visits import ValidateEvery
from shoal.options import Options
from shoal.policy import Fifo, Hop
from shoal.testing.backends import Setting, check_backend
from shoal.train.data.data import Data
from shoal.train.lane.checkpoints import Checkpoints, StaleRun
from shoal.train.recipe.pickling import dumps

INLINE = (
    100 * 1024
)  # bytes: smaller results Ray returns to the driver instead of leaving them in the object store
LONG = 1000.0  # seconds: nothing here takes so long
SLOT0, SLOT1 = SlotId("slot0"), SlotId("slot1")


pytestmark = pytest.mark.usefixtures("shared_ray")


@pytest.mark.slow
def test_hop(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = noted_ways(monkeypatch)
    (marks := tmp_path / "marks").mkdir()
    recipe = Tiny(marks=marks, columns=2000)
    bench = Bench(tmp_path, recipe)
    located = []

    def see(backend: Ray) -> Any:
        def watch(*_: Any) -> None:
            refs = [
                at.carried.ref for at in backend.course.positions.values() if at.carried is not None
            ]
            if refs:
                ray.wait(
                    refs, num_returns=len(refs), fetch_local=False
                )  # a unit's state is known a moment after its report
                located.extend(ray.experimental.get_object_locations(refs).values())

        return watch

    backend = bench.run(Given(trials_of(bench.data, [4, 5, 6, 7], 2)), Hop(), see, slots=2)
    assert capfd.readouterr() == ("", "")
    assert bench.state.ended == {f"t{w}": "finished" for w in (4, 5, 6, 7)}
    bench.check_visits(2)
    bench.check_places()
    bench.check_order()
    bench.check_weights()
    assert [slot.shards for slot in bench.events(Joined)[0].slots] == [
        {"s000", "s002"},
        {"s001", "s003"},
    ]

    # States crossed, through the object store, and are counted: each a model with the two
    # moments of Adam.
    moved = [
        (trial, size) for entry in bench.events(Advanced) for trial, size in entry.moved.items()
    ]
    assert moved
    assert all(0.9 < size / (3 * 4 * 2000 * int(trial[1:])) < 1.3 for trial, size in moved)
    assert backend.moved == sum(size for _, size in moved)

    # What a hop costs is measured with its way, not only with the loading of the state.
    assert min(ways) > 0.0
    for entry in bench.events(Advanced):
        for spent in entry.spent.values():
            assert (spent.get("switch", 0.0) > LONG) == bool(entry.moved)
    switches = [entry.figures.get("switch", LONG) for entry in bench.events(Measured)]
    assert max(switches) > LONG
    assert min(switches) >= LONG
    assert located
    assert min(at["object_size"] for at in located) > INLINE
    # The data did not: not with what slots were told, nor was it built again, but by this
    # process, first of all.
    assert len(dumps((recipe, None))) < 240 * 2000 * 4 / 20
    assert [mark.name.partition("-")[0] for mark in marks.iterdir()] == [str(os.getpid())]
    log = (tmp_path / "trials" / "t5" / "log.txt").read_text()
    assert set(log.splitlines()) == {"a step at width 5 with 1 threads"}


def noted_ways(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that states were under way, as they are measured; then each way is `LONG`er."""
    ways: list[float] = []
    measure = Call.measure_way

    def measure_longer(call: Call, outcomes: Any) -> None:
        measure(call, outcomes)
        ways.append(call.way)
        call.way += LONG

    monkeypatch.setattr(Call, "measure_way", measure_longer)
    return ways


@pytest.mark.slow
def test_small_states_lie_in_the_object_store_too(tmp_path: Path) -> None:
    """What is small Ray would return through the driver. Also: how a gang is stopped, with a
    quota and without, and what is said while slots open.
    """
    bench = Bench(tmp_path, Tiny(slow=0.05))
    trial = trials_of(bench.data, [4], 4)[0]
    told: list[str] = []
    backend = bench.open(slots=1, threads=2, tell=lambda now, text: told.append(text))
    try:
        moments = backend.moments()
        assert told == ["Ray is there; opening 1 slot …"]
        next(moments)
        assert re.fullmatch(r"1 slot open after \d+\.\d s", told[-1])
        backend.submit(trial)
        at = backend.course.positions[trial.id]

        hop = solo(trial.id, SLOT0, 1, ShardId("s002"), 48)
        backend.change(None, hop)
        assert [type(event).__name__ for event in next(moments)[1]] == [
            "Advanced",
            "Measured",
            "Ended",
        ]
        ray.wait([at.carried.ref], fetch_local=False)
        assert (
            ray.experimental.get_object_locations([at.carried.ref])[at.carried.ref]["object_size"]
            > INLINE
        )
        backend.change(hop, None)  # it ended: nothing

        hop = solo(trial.id, SLOT0, 2, ShardId("s001"), 48)
        backend.change(None, hop)
        backend.change(hop, None)  # cut: void
        assert next(moments)[1] == (Fell(trial.id, 1, 48.0),)

        whole = solo(trial.id, SLOT0, 3)
        backend.change(None, whole)
        backend.change(whole, None)  # the unit under way is made to its end
        events = next(moments)[1]
        assert [type(event).__name__ for event in events] == ["Advanced", "Measured"]
        kept = next(moments)[1]  # nothing runs any more: its state becomes durable
        name = re.fullmatch(
            r"t4/000002-1-[0-9a-f]{8}\.pt", kept[0].name
        )  # no other process writes under that name
        assert name is not None and kept == (Kept(trial.id, 2, 96.0, name[0]),)
        ((_, (decided,)),) = moments
        assert isinstance(decided, Decided) and decided.seconds > 0, "how long this was"
    finally:
        backend.close()
    assert at.visits[0].shard == "s002"
    assert "with 2 threads" in (tmp_path / "trials" / "t4" / "log.txt").read_text()
    assert len({visit.shard for visit in at.visits}) == 2


@pytest.mark.slow
def test_idle_states_make_room(tmp_path: Path) -> None:
    """What lies idle in the object store beyond `state_memory_gb` becomes durable, and goes on
    from there.
    """
    bench = Bench(tmp_path, Tiny(slow=0.05))  # idle states become durable before the end
    bench.run(
        Given(trials_of(bench.data, [4, 5, 6], 2)),
        Hop(),
        slots=1,
        checkpoint_every=1e9,
        state_memory_gb=1e-6,
    )
    last = max(each.visits for each in bench.events(Kept))
    assert any(each.visits < last for each in bench.events(Kept)), "some in between"
    assert not bench.events(Fell)
    bench.check_visits(2)
    bench.check_weights()


@pytest.mark.nightly
def test_contract(tmp_path: Path) -> None:
    recipe = Tiny()
    data = recipe.data()
    runs = count()

    def make(state: State, since: float) -> Ray:
        folder = tmp_path / str(
            next(runs) if state.run == 1 else len(list(tmp_path.iterdir())) - 1
        )  # resumed: the last one's
        checkpoints = str(folder / "checkpoints")
        course = Positions(SEED, data.sizes, ValidateEvery(), state, folder / "trials")
        setup = RaySetup(
            checkpoints, state.run, Options("ray", slots=1, checkpoint_every=0.0), since=since
        )
        return Ray(recipe, data, course, setup)

    configs = [{"width": 4}, {"width": 5}]
    check_backend(
        Setting(
            make,
            data.sizes,
            configs,
            {"width": 13},
            policies=[Hop()],
            close=lambda backend: backend.close(),
        )
    )


# -- slots that die, leave and come
# -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kill_9_while_hopping(tmp_path: Path) -> None:
    """A trial that fails is along, too."""
    bench = Bench(tmp_path, Tiny(slow=0.02))
    *trials, last = trials_of(bench.data, [4, 13, 6, 7, 5], 3)
    died: list[bool] = []

    def killer(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            if not died and sum(map(len, state.visits.values())) >= 6:
                died.append(True)
                os.kill(backend.pids()[SLOT1], signal.SIGKILL)

        return watch

    def both_again(view: View) -> bool:
        if died and len(view.slots) == 1 and len(died) == 1:
            died.append(True)  # and it was noticed
        return len(died) == 2 and len(view.slots) == 2

    backend = bench.run(
        Given(trials, [last], both_again), Hop(), killer, slots=2, checkpoint_every=0.2
    )
    failed = {"t13": "failed: ArithmeticError: thirteen"}
    assert bench.state.ended == {f"t{w}": "finished" for w in (4, 5, 6, 7)} | failed
    assert (
        'raise ArithmeticError("thirteen")'
        in (tmp_path / "trials" / "t13" / "error.txt").read_text()
    )

    (left,) = bench.events(Left)
    assert left == Left(frozenset({SLOT1}), died=True)
    # Only the unit under way was lost, unless it had just ended: the state before it survived who
    # made it.
    fallen = [(i, line.entry) for i, line in enumerate(bench.lines) if isinstance(line.entry, Fell)]
    assert len(fallen) <= 1
    for at, fell in fallen:
        made = [
            entry.visits.get(fell.trial, ())
            for _, entry in bench.lines[:at]
            if isinstance(entry, Advanced)
        ]
        assert fell.visits == sum(map(len, made))
    moved, back = bench.events(Joined)[1:3]
    assert [(slot.id, slot.shards) for slot in moved.slots] == [(SLOT0, set(bench.data.shards))]
    assert {slot.id: len(slot.shards) for slot in back.slots} == {SLOT0: 2, SLOT1: 2}
    assert backend.moved > 0
    bench.check_visits(3, but=["t13"])
    bench.check_weights()


@pytest.mark.slow
def test_slots_come_die_and_go_under_fifo(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Tiny(slow=0.02))
    done: list[str] = []

    def churn(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            made = sum(map(len, state.visits.values()))
            if not done:
                done.append("another comes")
                backend.add_slots(1)
                with pytest.raises(ValueError, match="no slot slot9; there are slot0"):
                    backend.remove_slots([SlotId("slot9")])
            elif len(done) == 1 and made >= 4:
                done.append("it dies")
                os.kill(backend.pids()[SLOT1], signal.SIGKILL)
            elif len(done) == 2 and SLOT1 not in state.slots:
                done.append("it died")
            elif len(done) == 3 and "t5" in state.running:
                done.append("the first goes")
                backend.remove_slots([SLOT0])

        return watch

    two = lambda view: len(view.slots) == 2  # noqa: E731
    again = lambda view: len(done) == 3 and two(view)  # noqa: E731
    searcher = Given(
        [], trials_of(bench.data, [4, 6], 2), two, trials_of(bench.data, [5, 7], 2), again
    )
    backend = bench.run(searcher, Fifo(), churn, slots=1, checkpoint_every=0.1)
    died, went = bench.events(Left)
    assert (died, went) == (Left(frozenset({SLOT1}), died=True), Left(frozenset({SLOT0})))
    at = next(i for i, line in enumerate(bench.lines) if line.entry == went)
    assert not any(
        isinstance(line.entry, Fell) for line in bench.lines[at:]
    )  # its unit ended, and what only it held is durable
    assert {slot.id: slot.shards for slot in bench.state.slots.values()} == {
        SLOT1: set(bench.data.shards)
    }
    assert bench.state.ended == {f"t{w}": "finished" for w in (4, 5, 6, 7)}
    assert backend.moved == 0
    bench.check_visits(2)
    bench.check_places()
    bench.check_order()
    bench.check_weights()


DRIVER = """
import os, signal, sys
from pathlib import Path
from ray_kit import Bench, Given, Tiny, trials_of
from shoal.policy import Hop

folder = Path(sys.argv[1])
bench = Bench(folder, Tiny(slow=0.05))
steps = []

def watch(backend):
    def see(now, entries, state):
        there = "slot0" in state.slots
        if not steps and any(state.visits.values()):
            steps.append("killed")
            os.kill(backend.pids()["slot0"], signal.SIGKILL)
        elif steps == ["killed"] and not there:
            steps.append("gone")
        elif steps == ["killed", "gone"] and there:
            steps.append("back")
            (folder / "pids.part").write_text(" ".join(map(str, backend.pids().values())))
            (folder / "pids.part").rename(folder / "pids")
    return see

bench.run(Given(trials_of(bench.data, [4, 5], 1000)), Hop(), watch, slots=2)
"""


@pytest.mark.slow
def test_slots_end_with_their_driver_and_nothing_is_printed(tmp_path: Path) -> None:
    """Not even when a slot died; and they are gone soon after the driver was killed, as is the
    copy of the data.
    """
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "TMPDIR": str(tmp_path),
    }  # a long one
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    driver = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until = time.monotonic() + 180
        while not (tmp_path / "pids").exists():
            assert driver.poll() is None, driver.communicate()[0]
            assert time.monotonic() < until, "the slot that was killed did not come back"
            time.sleep(0.05)
    finally:
        driver.kill()
    assert driver.communicate()[0] == ""
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until, "slots outlive their driver"
        time.sleep(0.05)


# -- what pauses a study
# ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_lost_data_a_broken_folder_and_a_newer_run(tmp_path: Path) -> None:
    (shards := tmp_path / "shards").mkdir()
    for i in range(3):
        np.savez(shards / f"{i}.npz", np.zeros((20, 12), "float32"), np.zeros(20, "int64"))

    class Files(Tiny):
        def data(self) -> Data:
            return Data.folder(shards)

    bench = Bench(tmp_path, Files())
    backend = bench.open(slots=1, checkpoint_every=0.0)
    checkpoints = tmp_path / "checkpoints"
    names = iter("abcd")

    def unit(shard: str) -> list[str]:
        trial = Trial(TrialId(next(names)), 60, {"width": 4}, shards=frozenset(bench.data.shards))
        backend.submit(trial)
        backend.change(None, solo(trial.id, SLOT0, 1, ShardId(shard), 20))
        moments = backend.moments()
        assert [type(event) for event in next(moments)[1]] == [Joined]
        return [type(event).__name__ for event in next(moments)[1]]

    try:
        backend._assemble()
        # lost before the slot reads ahead, which must not disturb the unit before
        (shards / "1.npz").unlink()
        assert unit("s000") == ["Advanced", "Measured", "Kept", "Ended"]
        # That is not the trial's fault: its slot counts as without the shard from now on.
        assert unit("s001") == ["Fell", "Unread", "Ended"]
        assert backend._slots.ready[0].ready_slot.shards == {"s000", "s002"}
        checkpoints.rename(tmp_path / "aside")
        checkpoints.write_text("not a folder")
        with pytest.raises(OSError, match="checkpoints"):
            unit("s002")
        _clear(backend)
        checkpoints.unlink()
        (tmp_path / "aside").rename(checkpoints)
        Checkpoints(str(checkpoints), bench.state.run + 1).mark()
        with pytest.raises(StaleRun):
            unit("s002")
    finally:
        backend.close()


def _clear(backend: Ray) -> None:
    """Go on with its slots although a study would pause: starting others takes seconds."""
    for process in backend._slots.ready:
        process.run = None
    backend._work.active.clear()
