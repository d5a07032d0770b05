"""Large tables of which a little changes at each moment.

Copying a large dict at each moment would take time for all its entries. An `Overlay` keeps what
changed apart, over a base dict that many versions share. Copying an overlay takes time only for
what changed since its base was made. Once the changes exceed about the square root of the whole,
the overlay gets a new base. A plain dict is the quickest while it is small, so small tables stay
dicts. Order, equality and errors are those of a dict.
"""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from typing import Any, Final, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

# Up to so many entries, copying a dict takes about as long as copying an overlay.
SMALL = 512
# A new base is made once (changes)² > SPREAD * (entries of the base).
SPREAD = 12
_NONE: Final[Any] = object()  # as a default: there is no such entry


def writable(table: Mapping[K, V]) -> MutableMapping[K, V]:
    """An equal table to write to.

    The given table stays as it is, and must never be written to again.
    """
    if isinstance(table, Overlay):
        return table.copy()
    if type(table) is dict and len(table) > SMALL:
        return Overlay(table, {}, set())
    return dict(table)


def leading(table: Mapping[K, V]) -> Iterator[K]:
    """The keys in order, for a caller that stops after a few of them.

    Iterating over an `Overlay` makes a dict of all its entries first; this does not.
    """
    if isinstance(table, Overlay):
        return table.leading()
    return iter(table)


def as_dict(table: Mapping[K, V]) -> dict[K, V]:
    """The table as a dict, which must only be read."""
    if isinstance(table, Overlay):
        return table.whole()
    return table if type(table) is dict else dict(table)


class Overlay(MutableMapping[K, V]):
    """A table that is kept as changes over a shared dict, which is never written to.

    Whatever needs all entries, such as iterating, makes a whole dict of them once, at the cost of
    a copy. From then on looking up is quicker too.
    """

    __slots__ = ("_base", "_over", "_void", "_whole")

    def __init__(self, base: dict[K, V], over: dict[K, V], void: set[K]) -> None:
        self._base = base
        # The new and the changed entries.
        self._over = over
        # The keys that lost their place in the base: they are gone, or come again at the end.
        self._void = void
        # All entries as a dict; None until somebody needs it, and after each change.
        self._whole: dict[K, V] | None = None

    def copy(self) -> MutableMapping[K, V]:
        """The same as `writable(self)`."""
        if self._whole is not None or self._has_many_changes():
            return writable(self.whole())
        return Overlay(self._base, dict(self._over), set(self._void))

    def _has_many_changes(self) -> bool:
        """Whether a new base costs no more than copying the changes again and again."""
        changes = len(self._over) + len(self._void)
        return changes**2 > SPREAD * len(self._base)

    def whole(self) -> dict[K, V]:
        """All entries as a dict, which must only be read."""
        whole = self._whole
        if whole is None:
            whole = dict(self._base)
            for key in self._void:
                del whole[key]
            whole.update(self._over)
            self._whole = whole
        return whole

    # -- reading -------------------------------------------------------------------------------

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
        if key in self._over:
            return True
        return key in self._base and key not in self._void

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
        if key in self._void:
            return default
        return self._base.get(key, default)

    def __len__(self) -> int:
        if self._whole is not None:
            return len(self._whole)
        in_both = len(self._base.keys() & self._over.keys())
        come_again = len(self._void.intersection(self._over))
        changed_in_place = in_both - come_again
        return len(self._base) - len(self._void) + len(self._over) - changed_in_place

    def __iter__(self) -> Iterator[K]:
        return iter(self.whole())

    def leading(self) -> Iterator[K]:
        """The keys in order, without making a whole dict: slower for all, quicker for a few."""
        if self._whole is not None:
            yield from self._whole
            return
        for key in self._base:
            if key not in self._void:
                yield key
        for key in self._over:
            if key not in self._base or key in self._void:
                yield key

    def __reversed__(self) -> Iterator[K]:
        return reversed(self.whole())

    def keys(self) -> KeysView[K]:
        return self.whole().keys()

    def values(self) -> ValuesView[V]:
        return self.whole().values()

    def items(self) -> ItemsView[K, V]:
        return self.whole().items()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Overlay):
            other = other.whole()
        return self.whole() == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.whole())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.whole(),)

    # -- writing: only to what `writable` returned, before anybody else sees it -------------------

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
        found = self._over.pop(key, _NONE)
        below = self._base.get(key, _NONE)
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
