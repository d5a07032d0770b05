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


def believer(given: Profile | Given | None) -> Callable[[State], Profile]:
    """What deciders believe: what is given, and for the rest what was measured so far."""
    if given is None:
        return Believer(Given(()))
    if isinstance(given, Given):
        return Believer(given)
    if isinstance(given, Table):
        return given.believe
    return lambda state: given
