"""The studies of a folder: the folder itself is one, or those below it are."""

import threading
from pathlib import Path

from shoal.engine.plain_files import is_there
from shoal.study.folder import Folder, StudyError, studies_in
from shoal.ui.live import LiveStudy


class Shelf:
    """The studies that are served, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.alone = is_there(self.path / "journal.jsonl")
        self._lock = threading.Lock()
        self._studies: dict[str, LiveStudy] = {}
        if not self.studies():
            raise StudyError(
                f"there is no study in {path}: no journal.jsonl in it, nor in folders below it; "
                "give a study's folder, or one that holds studies"
            )

    def studies(self) -> dict[str, LiveStudy]:
        """The studies that are there now; those that were there before stay open."""
        with self._lock:
            found = {}
            for name, place in self._places().items():
                study = self._studies.get(name) or LiveStudy(name, Folder(place))
                found[name] = study
            self._studies = found
            return found

    def read(self) -> None:
        """Read the journals, so that whoever asks first need not wait as long."""
        for study in self.studies().values():
            study.seen()

    def get(self, name: str) -> LiveStudy | None:
        """The study of that name; None: there is none."""
        study = self._studies.get(name)
        if study is None:
            study = self.studies().get(name)
        return study

    def _places(self) -> dict[str, Path]:
        """The studies' folders by name."""
        if self.alone:
            return {self.path.name or "study": self.path}
        return studies_in(self.path)
