"""Checks the built site: its links, its requests, its tables, its pages for those who see badly.

    python tools/check_site.py [FOLDER]

FOLDER: where `make docs` wrote it, by default site/. Each link and picture leads somewhere, to
the very anchor; no page asks another host for anything. In Chromium, where there is one: at a width
of 1400 pixels no page has tables of more than 3000 pixels in all (what lies in a fold does not
count); at 420 pixels no page is wider than the screen; axe-core finds no serious fault, light or
dark. Exits with 1, and names each fault.
"""

import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
TALLEST = 3000  # pixels of a page's tables
WIDE, NARROW = (1400, 900), (420, 900)
TABLES = """() => [...document.querySelectorAll('table')]
  .filter(table => table.checkVisibility()).reduce((sum, table) => sum + table.offsetHeight, 0)"""
SPILLS = "() => document.documentElement.scrollWidth - window.innerWidth"
GRAVE = ("serious", "critical")
CHECKS = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}  # the rest does not depend on it


class Page(HTMLParser):
    """What a page links to, loads, and can be linked at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element names."""
        values = {key: value or "" for key, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if "src" in values:
            self.loads.append(values["src"])
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(values.get("href", ""))

    def has(self, anchor: str) -> bool:
        """Whether a link may lead to that place of the page; the theme's own begin with __."""
        return anchor in self.anchors or anchor.startswith("__")


def broken(site: Path) -> Iterator[str]:
    """Links and pictures that lead nowhere, and what is loaded from another host."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":  # served for any address: its links begin at the host's root
            continue
        for address in page.loads:
            if urlsplit(address).netloc:
                yield f"{path.relative_to(site)}: loads {address}"
        for address in (*page.links, *page.loads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{path.relative_to(site)}: {address} leads nowhere"
            elif target in pages and not pages[target].has(unquote(parts.fragment)):
                yield f"{path.relative_to(site)}: {address} has no such place"


def seen(site: Path, chromium: str) -> Iterator[str]:
    """What is wrong with pages in a browser."""
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.on("request", lambda request: asked.append(request.url))
        for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):
            name = path.relative_to(site)
            tab.set_viewport_size(dict(zip(("width", "height"), WIDE, strict=True)))
            for scheme, rules in CHECKS.items():
                if name.parts[0] == "decisions" and scheme == "dark":
                    continue  # plain texts with the colours of all others
                tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                tab.goto(path.as_uri())
                for fault in Axe().run(tab, options=rules).response["violations"]:
                    if fault["impact"] in GRAVE:
                        place = fault["nodes"][0]["target"]
                        yield f"{name}, {scheme}: {fault['id']}: {fault['help']} ({place})"
            if (tall := tab.evaluate(TABLES)) > TALLEST:
                yield f"{name}: {tall} pixels of tables at {WIDE[0]}; at most {TALLEST}"
            tab.set_viewport_size(dict(zip(("width", "height"), NARROW, strict=True)))
            if (over := tab.evaluate(SPILLS)) > 0:
                yield f"{name}: {over} pixels wider than a screen of {NARROW[0]}"
        browser.close()
    for address in sorted(
        {url for url in asked if not url.startswith(("file:", "data:", "blob:"))}
    ):
        yield f"a page asks for {address}"


def main(site: Path) -> int:
    if not (site / "index.html").is_file():
        sys.exit(f"{site} has no index.html: build the site with `make docs`")
    faults = list(broken(site))
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium:
        faults += seen(site, chromium)
    for fault in faults:
        print(fault)
    pages = len(list(site.rglob("*.html")))
    unseen = "" if chromium else "; NOT looked at in a browser: there is no Chromium here"
    print(f"{pages} pages, {len(faults)} faults{unseen}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve()))
