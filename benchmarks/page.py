"""The live page of a large study: how long a browser waits for it.

A journal of finished trials is made; a server is started, and Chromium opens its page. Counted are
the seconds of the server's start, in which it reads the journal; from the opening of the address
until the first trials are shown; to sort the table; until a trial that is added is counted.

    python benchmarks/page.py
"""

import argparse
import gc
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, write
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(ROOT.parent / "tests" / "ui"))
from ui_kit import many, serving, submitted
from ui_kit import write as append

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run"]


def seconds(browser: Any, folder: Path, trials: int) -> dict[str, Any]:
    page = browser.new_page()
    asked = time.perf_counter()
    with serving(folder) as server:
        begun = time.perf_counter()
        page.goto(server.address)
        page.wait_for_selector("#trials[data-ready]")
        ready = time.perf_counter()
        page.click('[data-sort="lr"]')
        page.wait_for_selector('th[aria-sort="ascending"] [data-sort="lr"]')
        sorted_ = time.perf_counter()
        append(folder, {1e6: [submitted("added1", {"lr": 0.5, "width": 16})]})
        page.wait_for_selector(f'#count:text-is("{trials + 1:,} trials")')
        told = time.perf_counter()
    page.close()
    return {
        "trials": trials,
        "journal_MB": (folder / "journal.jsonl").stat().st_size / 1e6,
        "start_s": begun - asked,
        "ready_s": ready - begun,
        "sort_s": sorted_ - ready,
        "news_s": told - sorted_,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, nargs="*", default=[100, 10_000])
    asked = parser.parse_args()
    rows = []
    gc.set_threshold(100_000, 50, 50)  # as the command does
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as place:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        for trials in asked.trials:
            folder = many(Path(place) / str(trials), trials)
            rows.append(seconds(browser, folder, trials))
        browser.close()
    ratios = {f"page_ready_s_{row['trials']}": row["ready_s"] for row in rows}
    write("page", rows, ratios, ("starlette", "uvicorn"))


if __name__ == "__main__":
    main()
