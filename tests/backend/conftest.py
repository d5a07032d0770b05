"""Ray is an extra: without it, its tests are left out."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ray") else ["test_ray*.py"]
