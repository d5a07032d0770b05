"""Where trials run, when, and on how many slots: one pure decider a file, each with its source.

A policy is a frozen value; what it must remember is JSON-able and journalled; its randomness is a
function of (seed, turn). `describe` and `rebuild` turn one into plain data and back.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.policy.registry import POLICIES

if TYPE_CHECKING:
    from shoal.policy.auto import Auto as Auto
    from shoal.policy.combine import admit as admit
    from shoal.policy.combine import every as every
    from shoal.policy.combine import fallback as fallback
    from shoal.policy.description import describe as describe
    from shoal.policy.description import parse as parse
    from shoal.policy.description import rebuild as rebuild
    from shoal.policy.elastic.elastic import Elastic as Elastic
    from shoal.policy.fifo import Fifo as Fifo
    from shoal.policy.hop.hop import Hop as Hop
    from shoal.policy.hop.hybrid import Hybrid as Hybrid
    from shoal.policy.mixed import Mixed as Mixed
    from shoal.policy.pack.pack import Pack as Pack
    from shoal.policy.pack.packs_as_trials import PacksAsTrials as PacksAsTrials
    from shoal.policy.reference.baselines import Fixed as Fixed
    from shoal.policy.reference.baselines import HeSrpt as HeSrpt
    from shoal.policy.reference.baselines import Killable as Killable
    from shoal.policy.reference.baselines import Rounds as Rounds
    from shoal.policy.reference.baselines import SrptK as SrptK
    from shoal.policy.reference.baselines import Width as Width
    from shoal.policy.reference.baselines import Wrate as Wrate
    from shoal.policy.reference.milp import NodeMilp as NodeMilp
    from shoal.policy.width.doubling import Doubling as Doubling
    from shoal.policy.width.equi import Equi as Equi
    from shoal.policy.width.explore import Explore as Explore
    from shoal.policy.width.flotilla import Flotilla as Flotilla
    from shoal.policy.width.waterfill import WaterFill as WaterFill

# Imported when they are asked for: what prints only the policies' names imports none of them.
_PLACES = {
    "Auto": "auto:Auto",
    **{name: f"combine:{name}" for name in ("admit", "every", "fallback")},
    **{name: f"description:{name}" for name in ("describe", "parse", "rebuild")},
    **{entry.place.partition(":")[2]: entry.place for entry in POLICIES.values()},
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, thing = _PLACES[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), thing)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
