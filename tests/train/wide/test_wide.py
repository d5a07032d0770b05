"""A lane over several processes equals the lane alone, through changes of width and lost
processes.
"""

import os
import signal
import socket
from itertools import pairwise
from time import sleep

import pytest
from wide_kit import (
    Branching,
    Counting,
    Exact,
    Lanes,
    Normed,
    Result,
    Single,
    What,
    alone,
    differ,
    lanes,
    snapshot,
)

from shoal.train.recipe.seat import Move, Orders, Seat
from shoal.train.stream.reader import Reader
from shoal.train.wide.lane import Adrift, WideLane

SAME = 1e-8


def equal(got: list[Result], expected: list[Result]) -> None:
    assert len(got) == len(expected)
    for one, wanted in zip(got, expected, strict=True):
        assert differ(one.state, wanted.state) < SAME
        assert one.totals.keys() == wanted.totals.keys()
        for name, (total, count) in wanted.totals.items():
            assert one.totals[name] == (pytest.approx(total, rel=1e-9), count)


@pytest.mark.parametrize("kind", [Exact, Counting])
def test_a_width_that_changes_leaves_the_result_as_it_is_alone(kind):
    what = What(kind(), epochs=1)
    with lanes(what, 2) as at:
        at.start([0], stops=[(0, 20), (1, 30)])
        at.paused([0])
        at.move([0, 1], made=0, stops=[(1, 30)])
        at.go([0])
        at.paused([0, 1])
        at.move([1], made=1)
        at.go([0, 1])
        left, end = at.members[0].end(), at.members[1].end()
        first, second = at.members[1].results
    assert (left.outcome, end.outcome) == ("left", "made")
    equal([first, second], alone(what))
    assert first.widths == [(0, 1), (20, 2)]
    assert second.widths == [(0, 2), (40, 1)]  # both are told at 30, and agree with the next batch
    (wider,) = [each for each in left.rescales if each.after == 2]
    assert (
        (wider.generation, wider.before, wider.at) == (2, 1, 20)
        and wider.seconds > 0
        and wider.bytes > 0
    )


def up_and_down(at: Lanes) -> list[Result]:
    """1 -> 2 -> 4 -> 2 -> 1 in four visits of 48 or 49 samples; the first process leaves before
    the last.
    """
    every = [0, 1, 2, 3]
    at.start([0], stops=[(0, 10), (0, 20)])
    at.paused([0])
    at.move([0, 1], made=0, stops=[(0, 20)])
    at.go([0])
    at.paused([0, 1])
    at.move([2, 0, 3, 1], made=0, stops=[(2, 10)])
    for member in (0, 1):
        at.members[member].tell("stops", {(2, 10)})
    at.go([0, 1])
    at.paused(every)
    at.move([3, 1], made=2)
    for member in (1, 3):
        at.members[member].tell("stops", {(3, 20)})
    at.go(every)
    assert [at.members[member].end().outcome for member in (0, 2)] == ["left", "left"]
    at.paused([1, 3])
    at.move([3], made=3)
    at.go([1, 3])
    assert [at.members[member].end().outcome for member in (1, 3)] == ["left", "made"]
    return at.members[1].results[:1] + at.members[3].results[-3:]


CASES = {
    "adamw, steps of torch's schedule": What(Exact(), {"schedule": "steps"}),
    "momentum, one cycle by steps": What(Exact(), {"optimizer": "momentum", "schedule": "cycle"}),
    "momentum, warm-up by samples": What(Exact(), {"optimizer": "momentum", "schedule": "warm"}),
    "groups of batches, clipped": What(Exact(accumulate_grad_batches=2, gradient_clip_val=0.1)),
    "the rest dropped, within a group": What(
        Exact(batch_size=9, drop_last=True, accumulate_grad_batches=2)
    ),
    "another order in each pass": What(Exact(shuffle="each")),
    "the step, and what it changes of the model": What(Counting()),
    "parameters in use now and then": What(Branching(batch_size=3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_widths_1_2_4_2_1_equal_width_1(case):
    with lanes(CASES[case], 4) as at:
        got = up_and_down(at)
    equal(got, alone(CASES[case]))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize(
    "recipe",
    [Exact(), Exact(accumulate_grad_batches=2), Counting()],
    ids=["", "groups", "what a step changes of the model"],
)
def test_a_rank_killed_in_the_middle_of_a_step_costs_that_step_only(when, recipe):
    what = What(recipe)
    with lanes(what, 4) as at:
        at.start([0, 1, 2, 3], dies={1: (20, when)})
        at.members[1].process.join()
        at.move([0, 2, 3], made=0, broken=True)
        ends = [at.members[member].end() for member in (0, 2, 3)]
        results = [at.members[member].results for member in (0, 2, 3)]
    assert [end.outcome for end in ends] == ["made"] * 3
    for got in results:
        equal(got, alone(what))
        assert got[0].widths == [(0, 4), (20, 3)]


def test_a_lane_that_went_adrift_goes_on_with_the_next_seat():
    what = What(Exact(), epochs=1, shards=1)
    _, lane, stream = what.parts()
    (visit,) = what.visits()
    orders = Orders()
    wide = WideLane(lane, orders)
    wide.begin(Reader(lambda skip: stream.chunks(visit.shard, 0, "once", skip), visit.samples))
    steps = wide.run(Seat("t", 1, 0, 1))
    assert sum(next(steps) for _ in range(3)) == 30
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    orders.move(Move(2, Seat("t", 2, 0, 2, f"127.0.0.1:{port}", patience=0.2)))
    with pytest.raises(Adrift, match="no store at 127.0.0.1"):
        next(steps)
    assert sum(wide.run(Seat("t", 3, 0, 1))) == 67
    lane.visits = (visit,)
    with lane.rng:
        lane.end_epoch(None)
    assert differ(snapshot(lane), alone(what)[0].state) == 0  # at width 1 to the bit


def test_those_that_are_left_after_a_kill_and_those_that_join_go_on_together():
    what = What(Exact())
    with lanes(what, 4) as at:
        at.start([0, 1], stops=[(1, 20)])
        at.paused([0, 1])
        at.members[0].kill()
        at.go([1])
        at.move([2, 1, 3], made=1, broken=True)
        ends = [at.members[member].end() for member in (1, 2, 3)]
        results = [at.members[member].results for member in (1, 2, 3)]
    assert [end.outcome for end in ends] == ["made"] * 3
    for got in results:
        equal(got[-3:], alone(what)[1:])


@pytest.mark.slow
def test_the_one_that_took_the_most_steps_gives_its_state_to_the_others():
    """As when a sum reached some ranks and not others: here one is a step ahead, and not the
    first in gang order.
    """
    what = What(Exact())
    with lanes(what, 3) as at:
        at.start([0], stops=[(0, 30)])
        at.start([1], stops=[(0, 20)])
        at.start([2], stops=[(0, 20)])
        at.seated = [0, 1, 2]
        for member in (0, 1, 2):
            at.paused([member])
        at.move([1, 0, 2], made=0)
        at.go([0, 1, 2])
        assert [member.end().outcome for member in at.members] == ["made"] * 3
        results = [member.results for member in at.members]
    for got in results:
        equal(got, alone(what))
        assert got[0].widths == [(0, 1), (30, 3)]


@pytest.mark.slow
def test_bf16_trains_at_any_width():
    what = What(Single(precision="bf16"), {"optimizer": "momentum"})
    with lanes(what, 2) as at:
        at.start([0, 1])
        assert [member.end().outcome for member in at.members] == ["made"] * 2
        got = at.members[0].results
    for one, wanted in zip(got, alone(what), strict=True):
        assert one.totals["loss"][0] == pytest.approx(wanted.totals["loss"][0], rel=1e-2)


@pytest.mark.slow
def test_a_batch_per_slot_grows_with_the_width_and_decays_fall_where_they_did():
    what = What(
        Exact(batch_size=4, batch_per_slot=True),
        {"optimizer": "momentum", "schedule": "warm"},
        samples=96,
    )
    with lanes(what, 4) as at:
        at.start([0], stops=[(0, 16)])
        at.paused([0])
        at.move([0, 1], made=0, stops=[(1, 16)])
        at.members[0].tell("stops", {(1, 16)})
        at.go([0])
        at.paused([0, 1])
        at.move([0, 1, 2, 3], made=1)
        at.go([0, 1])
        assert at.members[0].end().outcome == "made"
        got = at.members[0].results
    assert [each.widths for each in got] == [
        [(0, 1), (16, 2)],
        [(0, 2), (24, 4)],
        [(0, 4)],
        [(0, 4)],
    ]

    def rate(
        sample: int, width: int
    ) -> float:  # eq. 7 over warm-up and decay, which know samples only
        epoch = sample / 96
        return 0.05 * width * min(1.0, 0.1 + 1.8 * epoch) * (0.1 if epoch >= 1 else 1.0)

    expected, sample = [], 0
    for result in got:
        ends = [*[start for start, _ in result.widths[1:]], 48]
        rates = []
        for (start, width), end in zip(result.widths, ends, strict=True):
            rates += [rate(sample + at_, width) for at_ in range(start, end, 4 * width)]
        expected.append(rates)
        sample += 48
    for result, rates in zip(got, expected, strict=True):
        assert result.rates == pytest.approx(rates)
    assert [rates[0] for rates in expected[1:]] == pytest.approx(
        [0.1, 0.02, 0.02]
    )  # x 2; then / 10 at the epoch's end, x 4
    replayed = What(what.recipe, what.config, samples=96)
    equal(got, follow(replayed, [each.widths for each in got]))


def follow(what: What, widths: list[list[tuple[int, int]]]) -> list[Result]:
    """The same batches and rates at width 1."""
    with lanes(what, 1) as at:
        at.members[0].tell("follow", widths)
        at.start([0])
        assert at.members[0].end().outcome == "made"
        return at.members[0].results


@pytest.mark.slow
def test_batch_norm_is_warned_of_once_and_parameters_stay_alike_on_all_ranks():
    what = What(Normed(), {"schedule": "none"})
    with lanes(what, 3) as at:
        at.start([0, 1], stops=[(1, 20)])
        at.paused([0, 1])
        at.move([2, 0, 1], made=1)
        at.go([0, 1])
        assert [member.end().outcome for member in at.members] == ["made"] * 3
        results = [member.results[-1] for member in at.members]
    warned = [text for result in results for text in result.warnings if "batch norm" in text]
    assert len(warned) == 1 and warned[0].startswith("trial t: batch norm sees only a slot's share")
    for one, other in pairwise(results):
        for name, value in one.state["model"].items():
            if "running" not in name:
                assert (value == other.state["model"][name]).all()


@pytest.mark.slow
@pytest.mark.parametrize(("size", "warns"), [(10, 0), (16, 1)])
def test_what_slots_make_of_a_model_otherwise_is_warned_of(size, warns):
    """A last batch of one sample is no step of the second slot."""
    what = What(Counting(batch_size=size))
    with lanes(what, 2) as at:
        at.start([0, 1])
        assert [member.end().outcome for member in at.members] == ["made"] * 2
        results = [member.results[-1] for member in at.members]
    told = [text for result in results for text in result.warnings]
    assert sum("the slots made something else" in text for text in told) == warns


def test_a_step_that_was_made_again_draws_the_same_numbers():
    """Dropout and batch statistics: what the spoilt step did to random states and buffers is
    undone.
    """
    what = What(Normed(), {"schedule": "none"}, epochs=1)
    with lanes(what, 2) as at:
        at.start([0, 1], dies={1: (0, "backward")})
        at.members[1].process.join()
        at.move([0], made=0, broken=True)
        assert at.members[0].end().outcome == "made"
        got = at.members[0].results
    equal(got, alone(what))


@pytest.mark.slow
def test_halting_one_rank_halts_all_at_the_same_step():
    with lanes(What(Exact()), 3) as at:
        at.start([0, 1, 2], stops=[(0, 20)])
        at.paused([0, 1, 2])
        at.members[2].tell("halt")
        at.go([0, 1, 2])
        assert [member.end().outcome for member in at.members] == ["Halted: "] * 3


@pytest.mark.slow
def test_without_orders_a_rank_that_lost_its_peers_says_so_in_bounded_time():
    with lanes(What(Exact()), 2) as at:
        at.start([0, 1], dies={1: (20, "forward")}, patience=5.0)
        outcome = at.members[0].end().outcome
    assert outcome.startswith("Adrift: ")


@pytest.mark.slow
def test_the_recipes_own_error_stays_its_own_and_the_others_go_adrift():
    with lanes(What(Exact()), 2) as at:
        at.start([0, 1], dies={1: (20, "raise")}, patience=5.0)
        assert at.members[1].end().outcome == "TrialError: RuntimeError: no more"
        assert at.members[0].end().outcome.startswith("Adrift: ")


@pytest.mark.slow
def test_the_lane_trains_on_until_those_that_join_are_there():
    """The order names a process that never comes: nothing changes. The next order goes without
    it.
    """
    what = What(Exact())
    with lanes(what, 3) as at:
        at.start([0, 1], stops=[(0, 20), (2, 20)])
        at.paused([0, 1])
        at.promise([0, 1, 2])
        at.go([0, 1])
        at.paused([0, 1])
        at.move([1], made=2)
        at.go([0, 1])
        assert [at.members[member].end().outcome for member in (0, 1)] == ["left", "made"]
        got = at.members[1].results
    equal(got, alone(what))
    assert [each.widths for each in got] == [[(0, 2)], [(0, 2)], [(0, 2), (30, 1)], [(0, 1)]]


@pytest.mark.slow
def test_a_rank_that_is_slow_is_waited_for_and_one_that_hangs_is_left_on_order():
    what = What(Exact())
    with lanes(what, 2) as at:
        at.start([0, 1], stops=[(1, 20)], stall=300.0)
        at.paused([0, 1])
        at.go([0])
        sleep(1.2)  # longer than between two looks at orders
        at.go([1])
        assert [member.hear("made") for member in at.members]
        os.kill(at.members[1].process.pid, signal.SIGSTOP)
        at.move([0], made=2, broken=True)
        assert at.members[0].end().outcome == "made"
        got = at.members[0].results
    equal(got[-1:], alone(what)[-1:])


@pytest.mark.slow
def test_a_rank_that_hangs_without_orders_is_given_up_in_bounded_time():
    with lanes(What(Exact()), 2) as at:
        at.start([0, 1], stops=[(0, 20)], stall=10.0, patience=5.0)
        at.paused([0, 1])
        os.kill(at.members[1].process.pid, signal.SIGSTOP)
        at.go([0])
        assert at.members[0].end().outcome.startswith("Adrift: ")


def test_the_links_are_measured_once_a_lane_is_connected_and_told_to():
    what = What(Exact(), epochs=1)
    with lanes(what, 2) as at:
        at.start([0, 1], links=True)
        assert [member.end().outcome for member in at.members] == ["made", "made"]
        first, *others = at.members[0].results
    assert first.links.keys() == {"latency", "transfer", "rings"}
    # On one machine, which may be busy: 0 where a clock is coarse, and never hours.
    assert 0 <= first.links["latency"] < 10, "seconds a message"
    assert 0 <= first.links["transfer"] < 10_000, "seconds a GiB"
    assert not any(each.links for each in others)
    equal(at.members[0].results, alone(what))


@pytest.mark.slow
def test_links_are_not_measured_unasked():
    with lanes(What(Exact(), epochs=1), 2) as at:
        at.start([0, 1])
        assert [member.end().outcome for member in at.members] == ["made", "made"]
        assert not any(each.links for each in at.members[0].results)
