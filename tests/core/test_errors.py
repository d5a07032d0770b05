"""A warning names the line of the user's code that Shoal was called from."""

import threading
import warnings
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import shoal
from shoal.core.errors import warn


def test_a_study_warns_at_the_users_line(tmp_path: Path, blobs: Any) -> None:
    space = {"width": shoal.grid([4]), "lr": shoal.grid([0.1]), "unread": shoal.grid([1, 2])}
    study = shoal.create_study(blobs(), storage=tmp_path / "study", search_space=space)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study.optimize(progress=False, max_epochs=1)
    (said,) = [each for each in caught if "unread" in str(each.message)]
    assert Path(said.filename) == Path(__file__)
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[said.lineno - 1]
    assert "study.optimize(" in line


def test_what_stands_between_is_no_users_code() -> None:
    namespace: dict[str, Any] = {"warn": warn, "contextmanager": contextmanager}
    source = "@contextmanager\ndef opened():\n    warn('deep')\n    yield\n"
    exec(source, {**namespace, "__name__": "shoal.fake"}, namespace)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with namespace["opened"]():
            pass
        thread = threading.Thread(target=partial(warn, "a thread has no user"))
        thread.start()
        thread.join()
    assert [Path(each.filename).name for each in caught] == [Path(__file__).name, "threading.py"]
