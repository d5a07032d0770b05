"""What the package says of itself, in one place each; and the commands that install it.

That it can be built, installed and used: `tools/check_package.py`.
"""

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator

import pytest
from page_kit import ROOT

from shoal import __version__
from shoal.core.install import EXTRAS, NEEDED, install

sys.path.insert(0, str(ROOT / "tools"))

import check_package

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOR_US = {"dev", "docs"}  # extras that need a checkout


def test_the_version_is_the_same_everywhere() -> None:
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    assert cited == __version__
    newest = re.search(r"^## (\d\S+) ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert newest == __version__


def test_the_addresses_are_those_of_the_site() -> None:
    """Those in README and in pages: tests/test_docs.py."""
    urls = PROJECT["urls"]
    site = (ROOT / "mkdocs.yml").read_text()
    assert f"\nsite_url: {urls['Documentation']}\n" in site
    assert f"link: {urls['Source']}\n" in site
    assert urls["Homepage"] == urls["Source"]
    assert urls["Changelog"] == f"{urls['Source']}/blob/main/CHANGELOG.md"
    assert urls["Issues"] == f"{urls['Source']}/issues"


def test_a_registry_knows_the_classifiers() -> None:
    """It refuses a package with others."""
    known = pytest.importorskip("trove_classifiers", reason="pip install trove-classifiers")
    assert not [each for each in PROJECT["classifiers"] if each not in known.classifiers]


def test_the_licences_are_those_of_shoal_and_of_its_bundle() -> None:
    (file,) = (name for name in PROJECT["license-files"] if name != "LICENSE")
    bundled = re.findall(r"^={80}\n\S+ \S+ \((.+)\)\n={80}$", (ROOT / file).read_text(), re.M)
    assert {*PROJECT["license"].split(" AND ")} == {"Apache-2.0", *bundled}


def test_what_shoal_needs_and_its_extras_are_those_of_the_package() -> None:
    names = [re.match(r"[\w-]+", line)[0] for line in PROJECT["dependencies"]]
    assert sorted(NEEDED) == sorted(names)
    for package, extra in EXTRAS.items():
        wanted = " ".join(PROJECT["optional-dependencies"][extra])
        assert re.search(rf"\b{package}[>=]", wanted), (package, extra)
    extras = PROJECT["optional-dependencies"].keys() - FOR_US
    assert {*EXTRAS.values()} == extras
    assert check_package.EXTRAS.keys() == extras  # each is installed alone, and used


def test_a_package_is_installed_by_the_extra_that_brings_it() -> None:
    assert install("pandas") == "pip install pandas"
    assert install("uvicorn", "starlette") == "pip install 'shoal[ui]'"
    assert install("ray", "pyarrow", "pillow") == "pip install 'shoal[parquet,ray]' pillow"


def hints() -> Iterator[tuple[str, list[str]]]:
    """Where a page or an example says what to install, and the words behind `pip install`."""
    places = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in ("docs", "examples"):
        places += sorted((ROOT / folder).rglob("*.*"))
    for path in places:
        if path.suffix not in (".py", ".md", ".ipynb") or path.parent.name == "decisions":
            continue
        text = path.read_text()
        bare = re.search(r"pip install \S*(?<!')shoal\[.*", text)
        assert not bare, f"{path}: quotes as a shell needs them: {bare[0]}"
        for words in re.findall(r"pip install ((?:'[^']*'|[^`\n\"'),;:])+)", text):
            yield f"{path.relative_to(ROOT)}: {words}", shlex.split(words)


def test_hints_to_install_have_one_form() -> None:
    """`pip install 'shoal[EXTRA]' NAME`: who has Shoal from a wheel has no checkout, and what an
    extra brings is installed by the extra. All that Shoal prints comes from `install`.
    """
    extras = PROJECT["optional-dependencies"].keys() - FOR_US
    found = list(hints())
    assert len(found) > 20
    wrong = []
    for where, words in found:
        for word in words:
            name, _, within = word.rstrip("]").partition("[")
            fits = name != "shoal" or not within or {*within.split(",")} <= extras
            if word in EXTRAS or not fits:
                wrong.append(where)
        if "-e" in words and not where.startswith(("docs/install.md", "CONTRIBUTING.md")):
            wrong.append(where)
    assert not wrong
    for path in (ROOT / "shoal").rglob("*.py"):
        assert "pip install" not in path.read_text() or path.name == "install.py", path


def test_the_installation_page_names_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    assert not [name for name in {*EXTRAS.values()} if f"'shoal[{name}]'" not in page]
