"""A backend, wired up from a study and its options."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from shoal.core.cluster import Slot, SlotId
from shoal.core.ports import Profile
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial
from shoal.folder import StudyError
from shoal.wiring import Options

if TYPE_CHECKING:
    from shoal.study import Study
    from shoal.train.checkpoint import Vault
    from shoal.train.data import Data


class WiredBackend:
    """A backend, the place of its checkpoints, and how to close it."""

    def __init__(self, backend: Any, vault: "Vault", close: Callable[[], None] = lambda: None) -> None:
        self.backend: Any = backend
        self.vault = vault
        self.close = close


def check_place(study: "Study", state: State) -> None:
    """Raise StudyError where a new study's checkpoints would lie among another's: it deletes what it does not know."""
    from shoal.train.checkpoint import Vault

    if state.run == 0 and study.folder.elsewhere is not None and Vault(study.folder.elsewhere, 0).names():
        raise StudyError(
            f"there are checkpoints in {study.folder.elsewhere} already, of another study: give each its own, checkpoints="
        )


def backend(study: "Study", options: Options, data: "Data", state: State, since: Seconds, given: Profile | None) -> WiredBackend:
    """The backend, ready to run; its vault is marked as this run's, so that a former run's writers are refused."""
    from shoal.backend.course import Course
    from shoal.train.checkpoint import Vault

    vault = Vault(study.folder.checkpoints, state.run)
    vault.mark()
    course = Course(study.seed, data.sizes, options.validate_every, state, study.folder.path / "trials")
    if options.backend == "ray":
        return _ray(study, options, data, state, since, given, vault, course)
    from shoal.backend.local import Local
    from shoal.train.device import device_of, limit_memory
    from shoal.train.station import Station

    device = device_of(options.device)
    station = Station(
        study.recipe,
        data,
        vault,
        seed=study.seed,
        run=state.run,
        device=device,
        kind=device,
        threads=options.threads,
        checkpoint_every=options.checkpoint_every,
        data_memory_gb=options.data_memory_gb,
        state_memory_gb=options.state_memory_gb,
        slot_memory_gb=inf if options.slot_memory_gb is None else options.slot_memory_gb,
        pace=Pace(given) if given is not None else None,
        metric=study.metric,
    )
    memory = limit_memory(device, options.slot_memory_gb)
    slot = Slot(SlotId("local"), platform.node() or "here", device, memory, frozenset(data.shards))
    return WiredBackend(Local(station, course, slot, since), vault)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of training from a given profile, not from a clock, so that equal runs checkpoint alike. Travels to slots."""

    given: Profile

    def __call__(self, trial: Trial, samples: Samples) -> Seconds:
        from shoal.profile.table import Table

        profile = self.given.of({trial.id: trial}) if isinstance(self.given, Table) else self.given
        return samples / profile.curve(trial.id, 1)[0]


def _ray(
    study: "Study",
    options: Options,
    data: "Data",
    state: State,
    since: Seconds,
    given: Profile | None,
    vault: "Vault",
    course: Any,
) -> WiredBackend:
    try:
        import ray  # noqa: F401 - told apart from a fault within our own module
    except ImportError as error:
        raise StudyError("the ray backend needs Ray: pip install -e '.[ray]' in Shoal's checkout") from error
    from shoal.backend.ray import Ray

    made = Ray(
        study.recipe,
        data,
        course,
        study.folder.checkpoints,
        run=state.run,
        slots=options.slots,
        address=options.address,
        threads=options.threads,
        copies=options.copies,
        since=since,
        metric=study.metric,
        checkpoint_every=options.checkpoint_every,
        data_memory_gb=options.data_memory_gb,
        state_memory_gb=options.state_memory_gb,
        slot_memory_gb=options.slot_memory_gb,
        pace=Pace(given) if given is not None else None,
        logs=study.folder.path.resolve() / "trials",
        feeders=options.feeders,
        stream_memory_gb=options.stream_memory_gb,
        stream_samples=options.stream_samples,
    )
    return WiredBackend(made, vault, made.close)
