"""`Data.shards`: data of which nodes hold the shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Generic, TypeVar, overload

from shoal.core.cluster import GiB, ShardId
from shoal.train.data.parts import Parts
from shoal.train.data.placed.cache import UrlCache
from shoal.train.data.placed.catalogue import Catalogue, catalogue_of, here
from shoal.train.data.placed.source import Holders, PlacedFiles, PlacedRows
from shoal.train.data.placed.survey import (
    Asked,
    Finding,
    Stamp,
    Surveyor,
    check,
    survey_here,
)

CACHE_GB = 20.0
D = TypeVar("D")


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


_SURVEY: ContextVar[Survey | None] = ContextVar("survey", default=None)


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

        A shard may lie at several nodes, as equal copies. Only these nodes read it; where the
        study runs on other machines, not even the process that runs it. `train`: such a dict, or a
        TOML file with tables [train.ID] and [valid.ID]. `valid`: the validation parts. The node
        "*" stands for every node. See docs/shards.md for what nodes are called.

        Each shard is a file: .npz, .npy, .csv, .parquet, .arrow, .tar, a folder of pictures by
        class; or any that the recipe's method `read(path)` reads. Paths may be URLs of fsspec:
        each holder fetches the file once, and keeps up to `cache_gb` GiB in the folder `cache` (by
        default in the temporary folder). With `stage` it does so with the paths of "*", too: for
        a shared folder that is slower than a node's own disk.

        Before any work each holder looks at its files: how large they are, a checksum, and the
        first holder how many samples of which columns there are.

        Raises:
            DataError: no catalogue, a shard without a holder, a file that is missing, copies that
                differ, shards of unlike columns.
        """
        how = current_survey()
        limit = UrlCache(cache_gb, None if cache is None else str(cache))
        catalogue = catalogue_of(train, valid)
        if stage:
            catalogue = catalogue.staged()
        asked = Asked(catalogue, limit, how.recipe)
        findings = how.surveyor(asked)
        good = check(asked, findings)
        make: Any = self._kind
        data: D = make(_parts(asked, findings, good, how))
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
    asked: Asked,
    findings: Sequence[Finding],
    good: Mapping[ShardId, Finding],
    how: Survey,
) -> Parts:
    """Data of what was found."""
    catalogue = asked.catalogue
    forms = {part: found.form for part, found in good.items() if found.form is not None}
    contents = {part: found.content for part, found in good.items() if found.content}
    about = [(part, content.size, content.digest) for part, content in contents.items()]
    kind = PlacedFiles
    if all(form.by_rows for form in forms.values()):
        kind = PlacedRows
    source = kind(
        catalogue,
        contents,
        _stamps(catalogue, findings),
        asked.cache,
        serial=any(form.serial for form in forms.values()),
        own=asked.read,
        names=how.names,
        holders=how.holders,
    )
    return Parts(
        source=source,
        training={part: forms[part].rows for part in catalogue.train},
        validation={part: forms[part].rows for part in catalogue.valid},
        row_bytes=max(form.row_bytes for form in forms.values()),
        fingerprint=blake2b(repr(about).encode(), digest_size=16).hexdigest(),
    )


def _stamps(catalogue: Catalogue, findings: Sequence[Finding]) -> dict[tuple[ShardId, str], Stamp]:
    """When each file was written, by part and the node as the catalogue names it.

    What a node found is of its own file only. A finding under another name than the catalogue's
    is of what lies everywhere, or of this machine under its other name.
    """
    found = {}
    for each in findings:
        places = catalogue.parts[each.part]
        if each.node in places:
            found[each.part, each.node] = each.stamp
            continue
        for node, path in places.items():
            if path == each.path:
                found.setdefault((each.part, node), each.stamp)
    return found
