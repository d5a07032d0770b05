"""Large tables that change a little at each moment: what changed lies over a base that many versions share.

A plain dict is the quickest while it is small, so small tables stay dicts. Copying a large one at each moment would cost as
much as there are entries; an `Overlay` is copied at the cost of what changed since its base was made, and gets a new base
once that is more than about the square root of all. Order, equality and errors are those of a dict.
"""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from typing import Any, Final, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

SMALL = 512  # entries up to which a plain copy costs about as much as the copy of an overlay
SPREAD = 12
_NONE: Final[Any] = object()  # as a default: there is nothing


def writable(table: Mapping[K, V]) -> MutableMapping[K, V]:
    """An equal table to write to; the one given stays as it is, and must never be written to again."""
    if type(table) is dict:
        return dict(table) if len(table) <= SMALL else Overlay(table, {}, set())
    if isinstance(table, Overlay):
        return table.copy()
    return dict(table)


class Overlay(MutableMapping[K, V]):
    """A table as changes over a dict that is shared, and never written to.

    Whoever goes through all of it makes it whole, once, at the cost of a copy; from then on looking up is quicker too.
    """

    __slots__ = ("_base", "_over", "_void", "_whole")

    def __init__(self, base: dict[K, V], over: dict[K, V], void: set[K]) -> None:
        self._base = base
        self._over = over  # new and changed entries
        self._void = void  # keys that lost their place in the base: gone, or come back at the end
        self._whole: dict[K, V] | None = None  # all of it as a dict, where that is at hand

    def copy(self) -> MutableMapping[K, V]:
        """As `writable`: a new base is made, or used, where it costs no more than copies of the changes would."""
        if self._whole is None and (len(self._over) + len(self._void)) ** 2 <= SPREAD * len(self._base):
            return Overlay(self._base, dict(self._over), set(self._void))
        return writable(self.whole())

    def whole(self) -> dict[K, V]:
        """All of it as a dict, only to be read."""
        whole = self._whole
        if whole is None:
            whole = dict(self._base)
            for key in self._void:
                del whole[key]
            whole.update(self._over)
            self._whole = whole
        return whole

    # -- reading -------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: K) -> V:
        whole = self._whole
        if whole is not None:
            return whole[key]
        if key in self._over:
            return self._over[key]
        if key in self._void:
            raise KeyError(key)
        return self._base[key]

    def __contains__(self, key: object) -> bool:
        whole = self._whole
        if whole is not None:
            return key in whole
        return key in self._over or (key in self._base and key not in self._void)

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: Any = None) -> Any:
        whole = self._whole
        if whole is not None:
            return whole.get(key, default)
        if key in self._over:
            return self._over[key]
        return default if key in self._void else self._base.get(key, default)

    def __len__(self) -> int:
        if self._whole is not None:
            return len(self._whole)
        places = len(self._base.keys() & self._over.keys()) - len(self._void.intersection(self._over))  # of old ones kept
        return len(self._base) - len(self._void) + len(self._over) - places

    def __iter__(self) -> Iterator[K]:
        return iter(self.whole())

    def __reversed__(self) -> Iterator[K]:
        return reversed(self.whole())

    def keys(self) -> KeysView[K]:
        return self.whole().keys()

    def values(self) -> ValuesView[V]:
        return self.whole().values()

    def items(self) -> ItemsView[K, V]:
        return self.whole().items()

    def __eq__(self, other: object) -> bool:
        return self.whole() == (other.whole() if isinstance(other, Overlay) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.whole())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.whole(),)

    # -- writing: only to what `writable` gave, before anybody else sees it --------------------------------------------------

    def __setitem__(self, key: K, value: V) -> None:
        self._over[key] = value
        self._whole = None

    def update(self, other: Any = (), /, **more: V) -> None:
        self._over.update(other, **more)
        self._whole = None

    def __delitem__(self, key: K) -> None:
        self.pop(key)

    @overload
    def pop(self, key: K, /) -> V: ...
    @overload
    def pop(self, key: K, /, default: V | D) -> V | D: ...
    def pop(self, key: K, /, default: Any = _NONE) -> Any:
        found, below = self._over.pop(key, _NONE), self._base.get(key, _NONE)
        if below is not _NONE:
            if found is _NONE and key not in self._void:
                found = below
            self._void.add(key)
        if found is not _NONE:
            self._whole = None
            return found
        if default is _NONE:
            raise KeyError(key)
        return default
