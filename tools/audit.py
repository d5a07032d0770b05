"""Known holes and licences of what Shoal needs, and of what is in its bundle: `make audit`.

Holes are looked up by pip-audit, which needs a network. Where it reaches no service of advisories
within a minute, that is said, and it counts as skipped.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

PATIENCE = 45  # seconds for an answer of the service of advisories
# Words of licences that may be used. LGPL: the library is loaded as it is, and not changed.
ALLOWED = (
    "apache",
    "bsd",
    "mit",
    "isc",
    "psf",
    "python software foundation",
    "python-2.0",
    "mpl",
    "mozilla",
    "lgpl",
    "lesser general public",
    "unlicense",
    "public domain",
    "zlib",
    "0bsd",
    "cc0",
    "hpnd",
    "historical permission",
    "boost",
)
# Packages whose metadata name no licence: looked up by hand.
KNOWN = {
    "nvidia": "NVIDIA's own, for its CUDA libraries, which torch's wheels bring",
    "cuda-": "NVIDIA's own, for its CUDA libraries, which torch's wheels bring",
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# The packages in plotly.min.js, as tools/plotly_bundle.py writes them.
BUNDLED = Path(__file__).parent.parent / "shoal/reporting/vendor/plotly.LICENSES.txt"
BUNDLED_TITLE = re.compile(r"^={80}\n(\S+ \S+) \((.+)\)\n={80}$", re.MULTILINE)


def needed(name: str, extras: frozenset[str], found: dict[str, Distribution]) -> None:
    """Add the package, and what it needs, as far as it is installed."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    try:
        found[key] = distribution(name)
    except PackageNotFoundError:
        return  # of an extra, or for another system
    for line in found[key].requires or ():
        wanted, _, marker = line.partition(";")
        of_extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        match = NAME.match(wanted.strip())
        if match and (of_extra is None or of_extra[1] in extras):
            needed(match[0], frozenset(), found)


def licence(package: Distribution) -> str:
    """What its metadata say of its licence."""
    about = package.metadata
    said = [about.get("License-Expression") or ""]
    classifiers = about.get_all("Classifier") or []
    said += [each for each in classifiers if each.startswith("License ::")]
    said.append((about.get("License") or "")[:200])
    return " | ".join(each for each in said if each)


def refused(packages: dict[str, Distribution]) -> Iterator[str]:
    """The packages with other licences, or none that they name."""
    for name, package in sorted(packages.items()):
        if any(name.startswith(known) for known in KNOWN):
            continue
        said = licence(package)
        if not allowed(said):
            yield f"{name}: {said or 'it names no licence'}"


def allowed(said: str) -> bool:
    """Whether a licence may be used."""
    return any(re.search(rf"\b{word}", said.lower()) for word in ALLOWED)


def bundled() -> tuple[int, list[str]]:
    """How many packages are in the bundle of plotly.js, and those with other licences.

    Their holes are in no service that pip-audit asks: see plotly.js's own advisories.
    """
    found = BUNDLED_TITLE.findall(BUNDLED.read_text())
    return len(found), [f"{name}: {said}" for name, said in found if not allowed(said)]


def audit() -> int:
    """Look for known holes. Returns the exit status: 0 also where nothing could be looked up."""
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner=off"]
    command += ["--skip-editable", "--timeout=10", "--format=json"]
    try:
        done = subprocess.run(
            command, timeout=PATIENCE, capture_output=True, text=True, check=False
        )
        found = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        print(f"pip-audit: skipped, no service of advisories answered in {PATIENCE} s")
        return 0
    except ValueError:  # it has said why, and nothing else
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        print(f"pip-audit: skipped, nothing could be looked up here ({said[:200]})")
        return 0
    known = [each for each in found if "vulns" in each]
    holes = [each for each in known if each["vulns"]]
    if not known:
        print("pip-audit: skipped, no service of advisories knows any package here")
        return 0
    print(f"pip-audit: {len(known)} packages looked up, {len(holes)} with known holes")
    for each in holes:
        ids = ", ".join(hole["id"] for hole in each["vulns"])
        print(f"  {each['name']} {each['version']}: {ids}")
    return 1 if holes else 0


def main() -> int:
    """Check both."""
    packages: dict[str, Distribution] = {}
    extras = frozenset({"ray", "optuna", "examples", "parquet", "lightning", "ui"})
    extras |= {"huggingface", "tensorboard", "mlflow", "wandb", "notebook"}
    needed("shoal", extras, packages)
    del packages["shoal"]
    wrong = list(refused(packages))
    print(f"licences: {len(packages)} packages looked at, {len(wrong)} not allowed")
    count, others = bundled()
    print(f"licences in the bundle of plotly.js: {count} packages, {len(others)} not allowed")
    if not count:
        others = ["none is listed"]
    wrong += others
    for line in wrong:
        print(f"  {line}")
    return max(audit(), 1 if wrong else 0)


if __name__ == "__main__":
    sys.exit(main())
