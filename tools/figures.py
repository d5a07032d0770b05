"""Figures in README, docs/ and papers/*/README.md are those of the results; this checks it.

    python tools/figures.py             # lists what differs; exit status 1 if anything does
    python tools/figures.py --write     # puts the results' figures into the pages
    python tools/figures.py --others docs/benchmarks.md     # lines with numbers that no rule covers

`figures_of_docs.py` and `figures_of_papers.py` hold the rules. A rule is a page, a piece of its
text with `{}` where figures stand, as in Python's `str.format`, and the figures themselves, read
from benchmarks/results and papers/results. The piece must stand in the page exactly once; where
its lines break does not matter. `{:_}` puts a space between thousands.
"""

from __future__ import annotations

import argparse
import sys

from figure_rules import Rule, check, others


def all_rules() -> list[Rule]:
    """The rules of all pages."""
    from figures_of_docs import RULES as OF_DOCS
    from figures_of_papers import RULES as OF_PAPERS

    return [*OF_DOCS, *OF_PAPERS]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put the results' figures in")
    parser.add_argument("--others", metavar="PAGE", help="list numbers that no rule covers")
    args = parser.parse_args()
    if args.others:
        print("\n".join(others(all_rules(), args.others)))
        return
    problems = check(all_rules(), write=args.write)
    print("\n".join(problems) or "all figures are those of the results")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
