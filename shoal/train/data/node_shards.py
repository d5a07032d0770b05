"""`Data.shards`: which nodes hold the shards, and their files as the processes of a node read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar, overload

from shoal.core.cluster import GiB, ShardId
from shoal.train.data.catalogue import EVERYWHERE, Catalogue, Place, catalogue_of, here, is_url
from shoal.train.data.columns import Columns, DataError, ShardError
from shoal.train.data.formats import ONLY, Read, parts_of_file, read_whole
from shoal.train.data.parts import Index, Parts, RowSource
from shoal.train.data.survey import (
    Content,
    Finding,
    Stamp,
    Surveyor,
    SurveyRequest,
    check,
    content_of,
    local_file,
    stamp_of,
    survey_here,
)
from shoal.train.data.url_cache import UrlCache

CACHE_GB = 20.0
D = TypeVar("D")
_SURVEY: ContextVar[Survey | None] = ContextVar("survey", default=None)


@dataclass(frozen=True, slots=True)
class Survey:
    """Who looks at the shards when data is made.

    `recipe`: whose own reader reads them; None: the usual readers. `names`: of the node that this
    process is on; none: it holds no shards. `holders`: read for this process what it does not hold.
    """

    recipe: Any = None
    surveyor: Surveyor = survey_here
    names: tuple[str, ...] = field(default_factory=here)
    holders: Holders | None = None


def current_survey() -> Survey:
    """Who looks at shards here and now: by default this process, which must hold them."""
    return _SURVEY.get() or Survey()


@contextmanager
def surveying(survey: Survey) -> Iterator[None]:
    """Within this, `Data.shards` has its shards looked at so."""
    token = _SURVEY.set(survey)
    try:
        yield
    finally:
        _SURVEY.reset(token)


class FromShards(Generic[D]):
    """Makes data of this kind: see `__call__`."""

    def __init__(self, kind: type[D]) -> None:
        self._kind = kind

    def __call__(
        self,
        train: Any,
        valid: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        cache_gb: GiB = CACHE_GB,
        cache: str | None = None,
        stage: bool = False,
    ) -> D:
        """Shards that stay at the nodes where they lie: {shard id: {node: path}}.

        A shard may lie at several nodes, as equal copies. Only these nodes read it; where the study
        runs on other machines, not even the process that runs it. The node "*" stands for every
        node. See docs/shards.md for what nodes are called.

        Each shard is a file: .npz, .npy, .csv, .parquet, .arrow, .tar, a folder of pictures by
        class; or any that the recipe's method `read(path)` reads. Paths may be URLs of fsspec: each
        holder fetches the file once, and keeps it in the folder `cache`.

        Before any work each holder looks at its files: how large they are, a checksum, and the
        first holder how many samples of which columns there are.

        Args:
            train: such a dict, or a TOML file with tables [train.ID] and [valid.ID].
            valid: the validation parts, as such a dict.
            cache_gb: GiB of fetched files that each node keeps.
            cache: the folder of these files. None: in the temporary folder.
            stage: fetch the paths of "*", too: for a shared folder that is slower than a node's own
                disk.

        Raises:
            DataError: no catalogue, a shard without a holder, a file that is missing, copies that
                differ, shards of unlike columns.
        """
        survey = current_survey()
        url_cache = UrlCache(cache_gb, None if cache is None else str(cache))
        catalogue = catalogue_of(train, valid)
        if stage:
            catalogue = catalogue.staged()
        request = SurveyRequest(catalogue, url_cache, survey.recipe)
        findings = survey.surveyor(request)
        good = check(request, findings)
        make: Any = self._kind
        data: D = make(_parts(request, findings, good, survey))
        return data


class ShardsOfData:
    """`Data.shards(…)` makes data; `data.shards` are its training shards, in their order."""

    @overload
    def __get__(self, data: None, kind: type[D]) -> FromShards[D]: ...
    @overload
    def __get__(self, data: object, kind: type[Any]) -> tuple[ShardId, ...]: ...
    def __get__(self, data: object | None, kind: type[Any]) -> Any:
        if data is None:
            return FromShards(kind)
        return vars(data)["shards"]

    def __set__(self, data: object, shards: tuple[ShardId, ...]) -> None:
        vars(data)["shards"] = shards


def _parts(
    request: SurveyRequest,
    findings: Sequence[Finding],
    good: Mapping[ShardId, Finding],
    survey: Survey,
) -> Parts:
    """The data that the findings tell of. `good`: one finding of each part, with its form."""
    catalogue = request.catalogue
    forms = {part: finding.form for part, finding in good.items() if finding.form is not None}
    contents = {part: finding.content for part, finding in good.items() if finding.content}
    fingerprints = [(part, content.size, content.digest) for part, content in contents.items()]
    kind = PlacedFiles
    if all(form.by_rows for form in forms.values()):
        kind = PlacedRows
    source = kind(
        catalogue,
        contents,
        _stamps(catalogue, findings),
        request.cache,
        serial=any(form.serial for form in forms.values()),
        user_reader=request.read,
        names=survey.names,
        holders=survey.holders,
    )
    return Parts(
        source=source,
        training={part: forms[part].rows for part in catalogue.train},
        validation={part: forms[part].rows for part in catalogue.valid},
        row_bytes=max(form.row_bytes for form in forms.values()),
        fingerprint=blake2b(repr(fingerprints).encode(), digest_size=16).hexdigest(),
    )


def _stamps(catalogue: Catalogue, findings: Sequence[Finding]) -> dict[tuple[ShardId, str], Stamp]:
    """When each file was written, by part and the node as the catalogue names it.

    What a node found is of its own file only. A finding under another name than the catalogue's
    is of what lies everywhere, or of this machine under its other name.
    """
    stamps = {}
    for finding in findings:
        places = catalogue.parts[finding.part]
        if finding.node in places:
            stamps[finding.part, finding.node] = finding.stamp
            continue
        for node, path in places.items():
            if path == finding.path:
                stamps.setdefault((finding.part, node), finding.stamp)
    return stamps


# -- the files, as the processes of a node read them -------------------------------------------


class Holders(Protocol):
    """Reads parts at the nodes that hold them, for a process that may be at none of these.

    It can be pickled: each process that gets it reaches the nodes by itself.
    """

    def read(self, source: PlacedFiles, part: ShardId, index: Index | None = None) -> Columns:
        """These samples of the part, in this order; None: all.

        Raises:
            DataError: no holder is there, or it cannot read them.
        """
        ...


@dataclass(slots=True)
class PlacedFiles:
    """Parts in files that lie at several nodes; each is read as a whole, where it lies.

    `contents`: what each part must hold. `stamps`: of the files that held just that, by part and
    node. `names`: of the node that this process is on; none: it holds nothing. `user_reader`:
    the recipe's own. `holders`: read what lies elsewhere for this process; None: nobody does.

    Before and after a file is read, its size, its time of writing and its time of change are
    looked at; those of one that came from a URL, before. If they changed, its checksum is computed
    again, and what was read while somebody wrote to the file is read once more.
    """

    catalogue: Catalogue
    contents: Mapping[ShardId, Content]
    stamps: Mapping[tuple[ShardId, str], Stamp]
    cache: UrlCache
    serial: bool = False
    user_reader: Read | None = None
    names: tuple[str, ...] = ()
    holders: Holders | None = None
    # What this process has looked up, which no other process gets.
    _good_stamps: dict[ShardId, Stamp] = field(default_factory=dict, init=False, repr=False)
    _places: Mapping[ShardId, Place] | None = field(default=None, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, each.name) for each in fields(self) if each.init]
        return type(self), tuple(values)

    def at(self, names: tuple[str, ...], alone: bool = True) -> Self:
        """The source for a process at the node with these names, which reads what lies there.

        Unless it is `alone`, holders go on reading the rest for it.
        """
        return replace(self, names=names, holders=None if alone else self.holders)

    @property
    def places(self) -> Mapping[ShardId, Place]:
        """Where the parts lie that this process's node holds."""
        if self._places is None:
            self._places = self.catalogue.at(self.names)
        return self._places

    def _has(self, part: ShardId) -> bool:
        """Whether this process is at a node, and the node holds the part."""
        return bool(self.names) and part in self.places

    def is_here(self, part: ShardId) -> bool:
        """Whether this process may read the part: it lies at its node, or holders read for it."""
        return self.holders is not None or part in self.places

    def read(self, part: ShardId) -> Columns:
        """All samples of the part.

        Raises:
            ShardError: it lies elsewhere only, or its file is not what it was.
            DataError: its holders are gone, or cannot read it.
        """
        if self.holders is not None and not self._has(part):
            return self.holders.read(self, part)
        return self._columns(part, lambda file: read_whole(file, self.user_reader, part))

    def damaged(self) -> dict[ShardId, str]:
        """Why each part that is to lie here cannot be read; URLs are not looked at."""
        reasons = {}
        for part, place in self.places.items():
            if is_url(place.path):
                continue
            try:
                self.file(part)
            except ShardError as error:
                reasons[part] = str(error)
        return reasons

    def file(self, part: ShardId) -> Path:
        """The part's file here, which holds what it must.

        Raises:
            ShardError: it lies elsewhere only, is gone, cut short, or holds other data.
        """
        place = self.places.get(part)
        if place is None:
            holders = ", ".join(self.catalogue.parts[part])
            why = f"it lies at {holders}, and nobody but its holders reads it"
            raise ShardError(part, "this process", why)
        try:
            file, stamp = self._local_file(place)
            if stamp != self._good_stamps.get(part, self.stamps.get((part, place.node))):
                file, stamp = self._verified(part, place, file)
        except FileNotFoundError as error:
            raise ShardError(part, place.node, f"{place.path} is gone") from error
        except (OSError, DataError) as error:
            if isinstance(error, ShardError):
                raise
            why = f"{place.path} cannot be read ({type(error).__name__}: {error})"
            raise ShardError(part, place.node, why) from error
        self._good_stamps[part] = stamp
        return file

    def _local_file(self, place: Place) -> tuple[Path, Stamp]:
        """The file at the place, fetched if it is a URL, and its stamp."""
        file = local_file(place.path, self._holder(place), self.cache)
        return file, stamp_of(file, place.path)

    def _holder(self, place: Place) -> str:
        """The node whose cache has the file: this one, also of what lies everywhere."""
        if place.node == EVERYWHERE and self.names:
            return self.names[0]
        return place.node

    def _verified(self, part: ShardId, place: Place, file: Path) -> tuple[Path, Stamp]:
        """The file, if it holds what it must; one that was fetched is fetched once again if not."""
        wanted = self.contents[part]
        stamp = stamp_of(file, place.path)
        content = content_of(file)
        if content != wanted and is_url(place.path):
            self.cache.forget(place.path, self._holder(place))
            file, stamp = self._local_file(place)
            content = content_of(file)
        if content != wanted:
            why = f"{place.path} holds {content}, and held {wanted} when the study began"
            raise ShardError(part, place.node, why)
        return file, stamp

    def _columns(self, part: ShardId, read: Callable[[Path], Columns]) -> Columns:
        """What `read` makes of the part's file, which held what it must before and after.

        A file of the cache is only looked at again after an error: it may have been given up since,
        and would be fetched once more.
        """
        for last in (False, True):
            file = self.file(part)
            place, stamp = self.places[part], self._good_stamps[part]
            try:
                columns = read(file)
                if is_url(place.path):
                    return columns
                self.file(part)
            except ShardError:
                raise
            except Exception as error:
                self.file(part)  # or it is told by what it holds now
                if last or stamp == self._good_stamps[part]:
                    why = f"{place.path} cannot be read ({type(error).__name__}: {error})"
                    raise ShardError(part, place.node, why) from error
            else:
                if last or stamp == self._good_stamps[part]:
                    break
        return columns


@dataclass(slots=True)
class PlacedRows(PlacedFiles):
    """Parts in files of which some samples can be read without the others."""

    _opened: dict[ShardId, tuple[Stamp, Parts]] = field(
        default_factory=dict, init=False, repr=False
    )

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the part. Raises as `read` does."""
        if self.holders is not None and not self._has(part):
            return self.holders.read(self, part, index)
        try:
            return self._columns(part, lambda file: self._rows(part, file, index))
        except ShardError:
            self._opened.pop(part, None)
            raise

    def _rows(self, part: ShardId, file: Path, index: Index) -> Columns:
        """These samples of the file, which is opened anew only where it changed."""
        stamp, parts = self._opened.get(part, ((0, 0, 0), None))
        if parts is None or stamp != self._good_stamps[part]:
            parts = parts_of_file(file)
            self._opened[part] = self._good_stamps[part], parts
        source = parts.source
        assert isinstance(source, RowSource), "the survey found that it is"
        return source.rows(ONLY, index)
