"""Where two lanes gain nothing together, but many of one form do, as measured; and no slot
idles for another's pack.
"""

from collections.abc import Sequence

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Joined, Opened, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane
from shoal.core.state import State, View, view
from shoal.core.trial import Trial, TrialId
from shoal.policy.fifo import Fifo
from shoal.policy.pack.pack import Pack
from shoal.policy.pack.packs_as_trials import PacksAsTrials
from shoal.profile.measure import Belief

SHARDS = {ShardId("all"): 100}
ONE, OTHER = "0123456789ab0000", "ba98765432100000"
FIGURES = {
    ONE: {
        "rate": 100.0,
        "step": 0.76,
        "fused:2": 1.6,
        "fused:8": 2.33,
        "fused:16": 2.8,
    },  # two together take longer than apart
    OTHER: {"rate": 100.0, "step": 0.76, "fused:8": 6.5},  # these gain nothing at all
}


def seen(
    names: Sequence[str], running: Sequence[str] = (), slots: int = 1, epochs: Sequence[float] = ()
) -> View:
    """Trials whose names begin with "a" are of one form, the others of another; the last ones
    run alone on a slot each.
    """
    here = tuple(Slot(SlotId(f"g{i}"), shards=frozenset(SHARDS)) for i in range(slots))
    lengths = [*epochs] or [1.0] * len([*names, *running])
    trials = [
        Trial(TrialId(t), 100.0 * length, {"form": t[0]}, shards=frozenset(SHARDS))
        for t, length in zip((*running, *names), lengths, strict=True)
    ]
    gangs = tuple(Gang((Lane(TrialId(t), (here[i].id,)),)) for i, t in enumerate(running))
    state = fold(
        State(),
        [
            Opened(1, SHARDS),
            Joined(here),
            *map(Submitted, trials),
            *([Planned((), gangs)] if gangs else []),
        ],
    )
    signatures = {t: ONE if t.startswith("a") else OTHER for t in state.known}
    return view(state, 0.0, Belief(FIGURES, signatures, state.known))


def packs(policy: object, of: View) -> list[list[str]]:
    plan, _ = policy.decide(of, policy.start())  # type: ignore[attr-defined]
    return sorted((list(gang.trials) for gang in plan.gangs), key=lambda p: (-len(p), p))


A = [f"a{i:02d}" for i in range(16)]
B = [f"b{i:02d}" for i in range(4)]


def test_two_gain_nothing_and_sixteen_do() -> None:
    assert packs(Pack(fuse=True), seen(A[:2])) == [["a00"]]
    assert packs(Pack(fuse=True), seen(A)) == [A]
    assert packs(Pack(), seen(A)) == [["a00"]], "unless they may not be fused"


def test_others_are_left_out() -> None:
    assert packs(Pack(fuse=True), seen([*B, *A])) == [A]
    assert packs(Pack(fuse=True), seen(B)) == [["b00"]]


def test_one_that_runs_is_joined_by_all_at_once() -> None:
    assert packs(Pack(fuse=True), seen(A[1:], A[:1])) == [A]
    assert packs(Pack(fuse=True), seen(A[1:3], A[:1])) == [["a00"]], "three gain nothing"
    assert packs(Pack(fuse=True), seen(B[1:], B[:1])) == [["b00"]]


def test_packs_that_wait_are_formed_and_stay_whole() -> None:
    policy = PacksAsTrials(Fifo())
    of = seen([*B, *A])
    (formed, _), inner = policy.decide(of, policy.start())[1], None
    assert sorted(formed, key=len) == [*([b] for b in B), A]
    (again, _) = policy.decide(of, [formed, inner])[1]
    assert again == formed


def test_no_slot_takes_what_another_one_has_time_for() -> None:
    """Sixteen of which one trains as long as all others: in one pack the other slot had nothing
    to do.
    """
    of = seen(A[:8], slots=2, epochs=[27, 27, 1, 1, 1, 1, 1, 1])
    assert [pack for pack in packs(Pack(fuse=True), of) if {"a00", "a01"} <= set(pack)] == []
    of = seen(A[2:12], A[:2], slots=2)
    assert [len(pack) for pack in packs(Pack(fuse=True), of)] == [6, 6], "nor does a pack that runs"


def test_slot_of_another_form_counts_for_nothing() -> None:
    """None of those that wait could train there, so that all may join the pack of their form,
    as were there one slot.
    """
    of = seen(A[1:], [A[0], B[0]], slots=2)
    assert packs(Pack(fuse=True), of) == [A, ["b00"]]
