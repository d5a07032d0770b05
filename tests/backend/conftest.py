"""Ray is an extra: without it, its tests are left out."""

import os
from importlib.util import find_spec

# Clusters that tests make in their own process ask for no token, also where the user has one.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
collect_ignore_glob = [] if find_spec("ray") else ["test_ray*.py"]
