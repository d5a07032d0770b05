"""Commands of a batch system that print what was recorded, and note what they are given."""

import stat
from collections.abc import Iterable
from pathlib import Path


def recorded(folder: Path, names: Iterable[str]) -> Path:
    """A folder of these commands. Each prints the file NAME.prints, notes its arguments in
    NAME.given, its environment in NAME.env, what it reads in NAME.read, and fails with NAME.error
    if that is there.
    """
    folder.mkdir()
    for name in names:
        file = folder / name
        file.write_text(
            f"""#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done >> {folder}/{name}.given
echo . >> {folder}/{name}.given
env > {folder}/{name}.env
case {name} in *sub|sbatch) cat > {folder}/{name}.read;; esac
if [ -e {folder}/{name}.error ]; then cat {folder}/{name}.error >&2; exit 1; fi
for word in "$@"; do
  if [ -e "{folder}/{name}.prints $word" ]; then cat "{folder}/{name}.prints $word"; exit 0; fi
done
cat {folder}/{name}.prints 2>/dev/null || true
"""
        )
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return folder


def calls(folder: Path, name: str) -> list[list[str]]:
    """The arguments of each call of the command."""
    if not (folder / f"{name}.given").exists():
        return []
    text = (folder / f"{name}.given").read_text()
    return [call.splitlines() for call in text.split(".\n")[:-1]]


def has(call: list[str], words: list[str]) -> bool:
    """Whether the words are among the call's arguments, one after the other."""
    return any(call[i : i + len(words)] == words for i in range(len(call)))
