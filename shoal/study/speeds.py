"""Speeds that a user gives, and what deciders believe of them."""

from collections.abc import Callable
from pathlib import Path

from shoal.core.errors import StudyError
from shoal.core.profile import Profile
from shoal.core.state import State
from shoal.engine.files import read_named, whole
from shoal.profile.measure import Believer
from shoal.profile.overrides import Given, load
from shoal.profile.table import Table


def profile_of(profile: Profile | str | Path | None) -> Profile | Given | None:
    """The given profile; a path is read as a TOML file.

    Raises:
        StudyError: it is no profile, or cannot be read.
        ValueError: the file is none.
    """
    if isinstance(profile, (str, Path)):
        try:
            read_named(whole(profile))  # raises if it has no end
        except OSError as error:
            raise StudyError(
                f"profile= takes the path of a TOML file, and this cannot be read: {error}"
            ) from error
        return load(whole(profile))
    if profile is not None and not hasattr(profile, "curve"):
        raise StudyError(f"profile= takes the path of a TOML file, or a Table; got {profile!r}")
    return profile


def believer(speeds: Profile | Given | None) -> Callable[[State], Profile]:
    """The speeds that deciders believe: these, and for the rest those measured so far."""
    if speeds is None:
        return Believer(Given(()))
    if isinstance(speeds, Given):
        return Believer(speeds)
    if isinstance(speeds, Table):
        return speeds.believe
    return lambda state: speeds
