"""What `figures.py` is made of: rules about figures in pages, checked and mended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

from figure_tables import Tables

ROOT = Path(__file__).resolve().parents[1]
NUMBER = r"[-+]?\d+(?: \d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A piece of a page, with a place for each figure; the figures."""

    page: str
    text: str
    figures: tuple[float, ...]

    def __post_init__(self) -> None:
        places = sum(name is not None for _, name, _, _ in Formatter().parse(self.text))
        if places != len(self.figures):
            raise ValueError(f"{self.text!r} has {places} places, for {len(self.figures)} figures")

    def pattern(self) -> re.Pattern[str]:
        """Matches the piece with any figures, each a group, wherever its lines break."""
        parts = []
        for words, name, _, _ in Formatter().parse(self.text):
            parts.append(r"\s+".join(re.escape(word) for word in re.split(r"\s+", words)))
            if name is not None:
                parts.append(f"({NUMBER})")
        return re.compile("".join(parts))

    def formatted(self) -> list[str]:
        """The figures as they should stand."""
        specs = [
            spec or "" for _, name, spec, _ in Formatter().parse(self.text) if name is not None
        ]
        pairs = zip(self.figures, specs, strict=True)
        return [format(figure, spec).replace("_", " ") for figure, spec in pairs]


@dataclass(frozen=True, slots=True)
class Block:
    """All that stands between <!-- name --> and <!-- end of name --> in a page."""

    page: str
    name: str
    content: str


Rule = Sentence | Block | Tables


def sentence(page: str, text: str, *figures: float) -> Sentence:
    return Sentence(page, text, figures)


def brought_up_to_date(page: str, rule: Rule) -> tuple[str, list[str]]:
    """The page's text with the rule's figures, and what was different.

    Raises:
        LookupError: the rule's piece is not in the page, or several times.
    """
    if isinstance(rule, Block):
        return with_block(page, rule)
    if isinstance(rule, Tables):
        return rule.brought_up_to_date(page)
    matches = list(rule.pattern().finditer(page))
    if len(matches) != 1:
        raise LookupError(f"{rule.page} has this {len(matches)} times instead of once: {rule.text}")
    (match,) = matches
    differences = []
    for group in range(match.re.groups, 0, -1):  # from the end, so that places before stay
        wanted = rule.formatted()[group - 1]
        if match.group(group) != wanted:
            shown = " ".join(match.group().split())
            differences.append(f"{match.group(group)} should be {wanted}: {shown}")
            page = page[: match.start(group)] + wanted + page[match.end(group) :]
    return page, differences[::-1]


def with_block(page: str, rule: Block) -> tuple[str, list[str]]:
    """The page with the block's content.

    Raises:
        LookupError: the page has no place for it.
    """
    before, mark, rest = page.partition(f"<!-- {rule.name} -->\n")
    old, end, after = rest.partition(f"<!-- end of {rule.name} -->")
    if not (mark and end):
        raise LookupError(f"{rule.page} has no place <!-- {rule.name} --> … <!-- end of … -->")
    new = f"\n{rule.content}\n"
    differences = [] if old == new else [f"the tables of {rule.name} are out of date"]
    return before + mark + new + end + after, differences


def check(rules: Sequence[Rule], root: Path = ROOT, write: bool = False) -> list[str]:
    """What differs from the results, each with its page. `write`: mend it."""
    problems = []
    for name in dict.fromkeys(rule.page for rule in rules):
        old = text = (root / name).read_text()
        for rule in rules:
            if rule.page != name:
                continue
            try:
                text, differences = brought_up_to_date(text, rule)
            except LookupError as error:
                problems.append(str(error))
                continue
            if not write:
                problems += [f"{name}: {difference}" for difference in differences]
        if write and text != old:
            (root / name).write_text(text)
    return problems


def others(rules: Sequence[Rule], page: str) -> Iterator[str]:
    """The page's lines with a number that no rule covers. These are inputs, or nobody's."""
    text = (ROOT / page).read_text()
    for rule in rules:
        if rule.page != page:
            continue
        if isinstance(rule, Tables):
            text = re.sub(
                r"^\| what \|(?:.*\n\|)*.*",
                lambda match: "\n" * match.group().count("\n"),
                text,
                flags=re.M,
            )
            continue
        if isinstance(rule, Block):
            before, _, rest = text.partition(f"<!-- {rule.name} -->")
            text = before + rest.partition(f"<!-- end of {rule.name} -->")[2]
            continue
        text = rule.pattern().sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(r"\d", line):
            yield f"{number}: {line.strip()}"
