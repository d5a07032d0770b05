"""Build `shoal/reporting/vendor/plotly.min.js`, which draws in the report and on the live page.

`python tools/plotly_bundle.py` needs npm and its registry. It writes two files:

- `plotly.min.js`: plotly.js with the kinds of traces that Shoal draws, and no others. None of them
  needs WebGL or `eval`.
- `plotly.LICENSES.txt`: all packages in that file, with versions, licences and their texts.

A new kind of trace: add it to KINDS, and run this again. A new version: VERSION, as plotly of
`constraints.txt` has it, for that checks the drawings in tests (`get_plotlyjs_version`).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

VERSION = "4.1.1"  # of plotly.js
ESBUILD = "0.28.1"
# Where each kind is; `scatter` is part of the core.
KINDS = {"scatter": None, "bar": "lib/bar"}
VENDOR = Path(__file__).resolve().parent.parent / "shoal" / "reporting" / "vendor"

BUILD = """
const fs = require('fs');
require('esbuild').build({
  entryPoints: ['entry.js'], outfile: 'out.js', bundle: true, minify: true, format: 'iife',
  globalName: 'Plotly', target: 'es2020', legalComments: 'none', logLevel: 'error',
  define: { global: 'window', 'define.amd': 'false', 'process.env.NODE_DEBUG': 'false' },
  loader: { '.css': 'empty' },  // the style of maps
  metafile: true,
}).then((made) => fs.writeFileSync('meta.json', JSON.stringify(made.metafile)));
"""
HEAD = """/**
 * plotly.js v{version} with these kinds of traces: {kinds}
 * Copyright 2012-2026, Plotly, Inc. Licensed under the MIT license
 * Its parts and their licences: plotly.LICENSES.txt; built by tools/plotly_bundle.py
 */
"""
RULE = "=" * 80


def parts(folder: Path) -> list[Path]:
    """The folders of the packages that something in the bundle comes from."""
    meta = json.loads((folder / "meta.json").read_text())
    (made,) = meta["outputs"].values()
    found = set()
    for name, part in made["inputs"].items():
        if "node_modules/" not in name or name.endswith(".css") or not part["bytesInOutput"]:
            continue
        before, _, rest = name.rpartition("node_modules/")
        words = rest.split("/")
        package = "/".join(words[: 2 if rest.startswith("@") else 1])
        found.add(folder / before / "node_modules" / package)
    return sorted(found)


def licence(package: Path) -> str:
    """A part of the file of licences: name, version, kind of licence, text."""
    about: dict[str, Any] = json.loads((package / "package.json").read_text())
    texts = [
        path.read_text().strip()
        for path in sorted(package.iterdir())
        if path.stem.lower() in ("license", "licence", "copying")
    ]
    if not texts:
        author = about.get("author", "its authors")
        if isinstance(author, dict):
            author = author["name"]
        author = author.partition("<")[0].strip()
        texts = [f"By {author}. The package brings no text of its licence."]
    title = f"{about['name']} {about['version']} ({about['license']})"
    return "\n".join([RULE, title, RULE, *texts, ""])


def main() -> int:
    """Build both files."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "package.json").write_text('{"private": true}')
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        command += [f"plotly.js@{VERSION}", f"esbuild@{ESBUILD}"]
        subprocess.run(command, cwd=folder, check=True)
        required = [f"require('plotly.js/{place}')" for place in KINDS.values() if place]
        (folder / "entry.js").write_text(
            "const Plotly = require('plotly.js/lib/core');\n"
            f"Plotly.register([{', '.join(required)}]);\n"
            "module.exports = Plotly;\n"
        )
        subprocess.run(["node", "-e", BUILD], cwd=folder, check=True)
        head = HEAD.format(version=VERSION, kinds=", ".join(KINDS))
        script = head + (folder / "out.js").read_text()
        if "</script" in script.lower():
            sys.exit("the bundle would end the script element that it stands in")
        licences = [licence(package) for package in parts(folder)]
    VENDOR.mkdir(exist_ok=True)
    (VENDOR / "plotly.min.js").write_text(script)
    (VENDOR / "plotly.LICENSES.txt").write_text("\n".join(licences))
    print(f"{len(script.encode()) / 1e6:.2f} MB of {len(licences)} packages, in {VENDOR}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
