"""Draws docs/architecture.svg: the package's rooms, and which of them imports which.

    python tools/architecture.py [--check]

A room is a folder of the package, or one of training's; single files count as rooms, and lesser
ones are left out. A room lies below all that import it. Arrows are imports; those that follow from
others are left out. It also sets the line numbers of docs/architecture.md, where a path is followed
by the name of what is there. `--check` writes nothing, and fails where a name is not there or the
picture has other rooms or arrows.
"""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
PAGE = ROOT / "docs" / "architecture.md"
SPLIT = {"train"}  # folders each folder of which is a room
LEAST = 300  # lines of a room that is drawn
WIDTH, ROW, BOX, HEIGHT = 1080, 92, 150, 46


def room_of(path: Path) -> str:
    """The room of one of the package's files."""
    parts = path.with_suffix("").parts
    return "/".join(parts[1 : 3 if parts[1] in SPLIT else 2])


def read() -> tuple[Counter[str], Counter[str], dict[str, set[str]]]:
    """Files and lines of each room, and the rooms that it imports."""
    listed = ["git", "ls-files", "shoal/*.py"]
    out = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [Path(name) for name in out.split() if name != "shoal/__init__.py"]
    home = {".".join(path.with_suffix("").parts): room_of(path) for path in paths}
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    imports: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        here, text = room_of(path), (ROOT / path).read_text(encoding="utf-8")
        files[here] += path.name != "__init__.py"
        lines[here] += text.count("\n")
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{each.name}" for each in node.names] + [node.module]
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            imports[here] |= {home[name] for name in names if name in home} - {here}
    small = {room for room in lines if lines[room] < LEAST}
    return files, lines, {room: imports[room] - small for room in lines if room not in small}


def ranks(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The rooms in rows: each below all that import it, near to them."""
    rank = dict.fromkeys(imports, 0)
    for _ in rank:
        for room, below in imports.items():
            for each in below:
                rank[each] = max(rank[each], rank[room] + 1)
    rows = [[room for room in rank if rank[room] == row] for row in range(max(rank.values()) + 1)]
    place = dict.fromkeys(rank, 0.5)
    for row in rows:
        users = {room: [place[each] for each in rank if room in imports[each]] for room in row}
        row.sort(key=lambda room: (fmean(users[room] or [0.5]), room))
        place |= {room: (at + 1) / (len(row) + 1) for at, room in enumerate(row)}
    return rows


def reduced(imports: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The imports without those that follow from others."""

    def reach(room: str) -> set[str]:
        below = set(imports.get(room, ()))
        return below.union(*(reach(each) for each in below))

    return [
        (room, each)
        for room, below in sorted(imports.items())
        for each in sorted(below)
        if not any(each in reach(other) for other in below if other != each)
    ]


def picture() -> str:
    """The drawing, as SVG."""
    files, lines, imports = read()
    order = ranks(imports)
    at = {
        room: ((place + 1) * WIDTH / (len(row) + 1), 24 + height * ROW)
        for height, row in enumerate(order)
        for place, room in enumerate(row)
    }
    parts = []
    for above, below in reduced(imports):
        (x, y), (u, v) = at[above], at[below]
        y, far = y + HEIGHT, v - y > ROW
        # What passes over rows goes around their boxes.
        side = (1 if (sum(map(ord, above + below)) % 2) else -1) * (BOX * 0.9 if far else 0)
        parts.append(
            f'<path d="M{x:.0f} {y} C{x + side:.0f} {y + 30} {u + side:.0f} {v - 34} '
            f'{u:.0f} {v - 6}"/>'
        )
    for room, (x, y) in at.items():
        parts.append(
            f'<rect x="{x - BOX / 2:.0f}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="6"/>'
            f'<text x="{x:.0f}" y="{y + 19}" class="name">{room}</text>'
            f'<text x="{x:.0f}" y="{y + 36}">{files[room]} files, {lines[room] / 1000:.1f}k lines'
            "</text>"
        )
    return HEAD.format(width=WIDTH, height=len(order) * ROW) + "\n".join(parts) + "\n</svg>\n"


HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<title>The rooms of Shoal; arrows are imports</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7"
markerHeight="7" orient="auto">
<path d="M0 0 L8 4 L0 8 z" style="fill:#789;stroke:none"/></marker></defs>
<style>
rect {{ fill: #f4f7fa; stroke: #345; }}
path {{ fill: none; stroke: #789; marker-end: url(#tip); }}
text {{ font: 11px sans-serif; text-anchor: middle; fill: #456; }}
.name {{ font: bold 14px sans-serif; fill: #123; }}
</style>
<rect width="100%" height="100%" style="fill:#fff;stroke:none"/>
"""


PLACE = re.compile(r"`(shoal/[\w/]+\.py):(\d+)` `(\w+)`")


def placed(page: str) -> tuple[str, list[str]]:
    """The page with the lines of today, and the places that are not there."""
    lost: list[str] = []

    def place(match: re.Match[str]) -> str:
        path, _, name = match.groups()
        text = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""
        there = re.search(rf"^( *(def|class) {name}\b|{name}( =|:))", text, re.MULTILINE)
        if there is None:
            lost.append(match.group())
            return match.group()
        line = text.count("\n", 0, there.start()) + 1
        return f"`{path}:{line}` `{name}`"

    return PLACE.sub(place, page), lost


def main() -> int:
    """Draws the picture and sets the lines, or compares them."""
    drawn = picture()
    page, lost = placed(PAGE.read_text(encoding="utf-8"))
    for each in lost:
        print(f"docs/architecture.md: {each} is not there")
    if "--check" in sys.argv:
        counts = re.compile(r"\d+ files, [\d.]+k lines")
        there = PICTURE.read_text(encoding="utf-8") if PICTURE.exists() else ""
        other = counts.sub("", there) != counts.sub("", drawn)
        if other:
            print("docs/architecture.svg has other rooms: run python tools/architecture.py")
        return int(other or bool(lost))
    PICTURE.write_text(drawn, encoding="utf-8")
    PAGE.write_text(page, encoding="utf-8")
    return int(bool(lost))


if __name__ == "__main__":
    raise SystemExit(main())
