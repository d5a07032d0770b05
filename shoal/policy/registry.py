"""Every policy that has a name: the one table that `--policy`, journals, `auto` and the help read.

To add one: write its file, then a line in `POLICIES`. With `auto=` in that line `auto` considers
it; with `use=` users are shown it in the help (docs/policy.md has the same line, a test says so).
Nothing is imported here before a policy is asked for: the command line prints this table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.core.state import View

CROWD = 4  # trials a slot: more of them are a crowd, in which hardly any has more than one slot


@dataclass(frozen=True, slots=True)
class Entry:
    """A name: the class behind it, as "module:Class" below `shoal.policy`, and who is told of it.

    `use`: when to use it, in words for users; "": only docs/policy.md has it. `given`: arguments
    that the name stands for. `auto`: its place among the policies that `auto` considers, of which
    the first that suits is followed while nothing is measured; None: `auto` considers it only if
    the user names it. When it suits is said by three words, see `suiting`:

    `hops`    it moves trials from shard to shard
    `wide`    it is for trials that may have several slots
    `shares`  all that it does is to share slots out among such trials
    """

    place: str
    use: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    auto: int | None = None
    hops: bool = False
    wide: bool = False
    shares: bool = False

    @property
    def kind(self) -> type[Any]:
        """The class, imported when it is asked for."""
        module, _, name = self.place.partition(":")
        kind: type[Any] = getattr(import_module(f"shoal.policy.{module}"), name)
        return kind


POLICIES: Mapping[str, Entry] = {
    "fifo": Entry(
        "fifo:Fifo",
        "one trial per slot, first come first served: what all others must beat",
        auto=5,
    ),
    "pack": Entry(
        "pack.pack:Pack", "small models: several on one slot, over one stream of data", auto=4
    ),
    "hop": Entry(
        "hop.hop:Hop",
        "data spread over the slots: models move from shard to shard, data stays",
        auto=2,
        hops=True,
    ),
    "hop-packs": Entry(
        "pack.packs_as_trials:PacksAsTrials",
        "as hop, for small models: packs of them move together",
        {"policy": {"name": "hop"}},
        auto=1,
        hops=True,
    ),
    "hybrid": Entry(
        "hop.hybrid:Hybrid",
        "hops while trials abound; the last ones read several shards at once",
        auto=11,
        hops=True,
        wide=True,
    ),
    "doubling": Entry(
        "width.doubling:Doubling",
        "trials of several widths: slots go where one more saves most time",
        auto=6,
        wide=True,
        shares=True,
    ),
    "explore": Entry(
        "width.explore:Explore",
        "as doubling, when nobody knows yet how trials scale: tries each width first",
    ),
    "equi": Entry(
        "width.equi:Equi",
        "trials of several widths: equal shares for all, whatever their lengths",
        auto=7,
        wide=True,
        shares=True,
    ),
    "waterfill": Entry(
        "width.waterfill:WaterFill",
        "trials of several widths: ends all of them as early as can be",
        auto=9,
        wide=True,
    ),
    "mixed": Entry(
        "mixed:Mixed",
        "small and large models: packs on some slots, wide trials on the others",
        auto=10,
        wide=True,
    ),
    "flotilla": Entry(
        "width.flotilla:Flotilla",
        "trials of unlike speed over one costly stream: those of like pace together",
        auto=8,
        wide=True,
        shares=True,
    ),
    "elastic": Entry(
        "elastic.elastic:Elastic",
        "slots that come and go: best widths for the next while, at each change",
    ),
    "every": Entry(
        "combine:Every", "every(seconds=600, policy=doubling): changes at intervals only"
    ),
    "admit": Entry("combine:Admit"),
    "fallback": Entry("combine:Fallback"),
    "packed": Entry("pack.packs_as_trials:PacksAsTrials"),
    "hop-rotation": Entry("hop.hop:Hop", given={"rule": "rotation"}, hops=True),
    "hop-lrw": Entry("hop.hop:Hop", given={"rule": "lrw"}, hops=True),
    "hop-early": Entry("hop.hop:Hop", given={"rule": "early"}, hops=True),
    "hop-random": Entry("hop.hop:Hop", given={"rule": "random"}, hops=True),
    "hop-quick4": Entry("hop.hop:Hop", given={"rule": "quick4"}, auto=3, hops=True),
    "milp": Entry("reference.milp:NodeMilp"),
    "fixed": Entry("reference.baselines:Fixed"),
    "width": Entry("reference.baselines:Width"),
    "killable": Entry("reference.baselines:Killable"),
    "wrate": Entry("reference.baselines:Wrate"),
    "hesrpt": Entry("reference.baselines:HeSrpt"),
    "srpt-k": Entry("reference.baselines:SrptK"),
    "rounds": Entry("reference.baselines:Rounds"),
}
AUTO = "auto"
# What users are shown, and when to use each.
SHOWN: Mapping[str, str] = {
    AUTO: "the default: simulates those that suit and follows the quickest",
    **{name: entry.use for name, entry in POLICIES.items() if entry.use},
}
# What `auto` considers, the usual choice first.
_RANKS = {name: entry.auto for name, entry in POLICIES.items() if entry.auto is not None}
CANDIDATES = tuple(sorted(_RANKS, key=_RANKS.__getitem__))


def full_name(name: str) -> str:
    """The name under which a journal has what this name stands for: `hop-lrw` is a `hop`."""
    entry = POLICIES[name]
    if not entry.given:
        return name
    return next(
        full for full, one in POLICIES.items() if one.place == entry.place and not one.given
    )


def entry_of(text: str) -> Entry | None:
    """The entry of a policy as a user names it: "hop-lrw", or "equi(every=600)"."""
    return POLICIES.get(text.partition("(")[0].strip())


def suiting(names: Sequence[str], view: "View") -> tuple[str, ...]:
    """The candidates that suit the slots, the shards and the trials; the usual one first.

    | what        | suits                                              | comes first           |
    | ----------- | -------------------------------------------------- | --------------------- |
    | any other   | unless a trial needs several slots                 |                       |
    | `hops`      | the same, and with several slots and shards        | a shard for each slot |
    | `wide`      | several slots, and a trial that may have several   | fewer trials than slots |
    | `shares`    | as `wide`, and at most four trials a slot, unless  |                       |
    |             | a trial needs several slots                        |                       |

    What hops and is wide must meet both, and then suits a trial that needs several slots, too.
    If nothing suits, all do.
    """
    slots, shards, trials = len(view.slots), len(view.shards), view.trials.values()
    wide = slots > 1 and any(trial.widths[1] > 1 for trial in trials)
    needed = wide and any(trial.widths[0] > 1 for trial in trials)
    crowd = len(trials) > CROWD * slots and not needed

    suit: list[tuple[str, Entry]] = []
    for name in names:
        entry = entry_of(name) or Entry("")
        if entry.hops and not (slots > 1 and shards > 1):
            continue
        if entry.wide and (not wide or (crowd and entry.shares)):
            continue
        if not entry.wide and needed:
            continue
        suit.append((name, entry))
    suit.sort(key=lambda named: named[1].hops is not (shards >= slots))
    if len(trials) < slots:
        suit.sort(key=lambda named: not named[1].wide)
    return tuple(name for name, _ in suit) or tuple(names)
