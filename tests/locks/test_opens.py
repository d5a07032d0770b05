"""Files of a study are reached in one place; what opens files otherwise, and why it may."""

import ast
from pathlib import Path

import shoal

ROOT = Path(shoal.__file__).parent
ONE_PLACE = "engine/plain_files.py"
OPENS = {
    *("read_bytes", "read_text", "write_bytes", "write_text", "unlink", "touch"),
    *("rmdir", "symlink_to", "hardlink_to", "rmtree", "copyfile", "copytree", "copy2"),
    *("makedirs", "removedirs", "FileLock", "SoftFileLock", "url_to_fs"),
}
OF_OS = {"open", "replace", "rename", "remove", "link", "symlink", "mkdir", "truncate"}


def opens(file: Path) -> bool:
    """Whether the module opens, makes or removes files by itself."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open"):
                return True
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in OF_OS:
                return True
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in OPENS:
                return True
            case ast.Attribute(attr="open", value=ast.Name(id=name)) if "path" in name:
                return True
            case _:
                pass
    return False


NAMED = "paths that the user types, or that a recipe of the user's names"
SCRATCH = "a folder in the temporary folder that belongs to this user alone"
OPEN_OTHERWISE = {
    "backend/node/": SCRATCH,
    "backend/ray/": SCRATCH,
    "engine/ownership.py": "locks, after a look at their files; folders of this user alone",
    "engine/process.py": "what the system says of processes",
    "harvest/": "a folder of this user alone; what the system says of processes",
    "profile/": NAMED,
    "reporting/html.py": "a report where the user named the file, which may be a device",
    "reporting/progress.py": "the null device",
    "simulate/": NAMED,
    "study/code/recipe_file.py": "the user's own source",
    "study/code/recipe_store.py": "the user's own source, which the user's mark names",
    "study/code/mark.py": "the user's key",
    "study/head.py": "what the system says of its processor",
    "study/results.py": SCRATCH,
    "tools/": NAMED,
    "train/data/": NAMED,
    "train/function/": SCRATCH,
    "train/lane/checkpoint_folder.py": "storage at a URL that the user named",
    "train/recipe/recipe_source.py": "the user's own source",
    "train/recipe/text_modules.py": "the user's own source",
    "train/slot/setup.py": "what the system says of memory",
    "train/tools/timing.py": SCRATCH,
    "train/stream/": "shared memory of this user's own processes",
    "ui/app.py": "files of this package",
}


def test_files_of_a_study_are_reached_in_one_place() -> None:
    found = {
        file.relative_to(ROOT).as_posix() for file in sorted(ROOT.rglob("*.py")) if opens(file)
    }
    assert ONE_PLACE in found
    more = [
        name for name in sorted(found - {ONE_PLACE}) if not name.startswith(tuple(OPEN_OTHERWISE))
    ]
    assert not more, f"use shoal.engine.plain_files, or say why not: {more}"
    unused = [name for name in OPEN_OTHERWISE if not any(x.startswith(name) for x in found)]
    assert not unused, f"these open nothing any more: {unused}"
