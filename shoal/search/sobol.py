"""Draws that cover a space from the first few on: Sobol's sequence, shifted by the seed.

Of independent draws the first four may be two pairs of near-equal values. Here 2, 4, 8, … draws
fall into as many equal parts of each dimension, and spread over pairs of dimensions. The direction
numbers are those of Joe and Kuo, SIAM J. Sci. Comput. 2008, as `scipy.stats.qmc.Sobol` has them.
They stand here so that a draw needs no import of SciPy's statistics (half a second), and is the
same with each version of it.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

POINTS = 1024  # so many draws are spread; later ones are independent
# Ten direction numbers of ten bits a dimension, three hexadecimal digits each.
_DIRECTIONS = (
    "200100080040020010008004002001",
    "2003002803c02203302a83fc202303",
    "2003001802403a01702383141a2273",
    "2003000801403e01d028824c362095",
    "2001000802c03e03701e827416a0bf",
    "2001001800c03200901583ec3821c1",
    "2003002803401602500f838c2fa08f",
    "2001002801402200900480b41da279",
    "2001002801400a03501a81c40e2161",
    "2001003802c026025022816c0ce367",
    "2001002800400201b027808c15e2b7",
    "2001000800c01602b02580ac352025",
    "2003002801403e02303880cc03e085",
    "2003001802400e031010828c3c62a9",
    "2001000803c02a015026827407a173",
    "2003000803403603101182142961db",
    "2001000803c00e00503d819c23e141",
    "2003000803c01a01900d81b4106381",
    "2001002801402603d02b82ec39e257",
    "2003003802c02e00f0338104086147",
    "2003003803401a00f02281442a6377",
    "2001001803400e02301f81c4322013",
    "2003002802400201901a822429632d",
    "2003000803401202303580e43560c9",
    "2003000801403603d00f825423e0f5",
    "2001002802c02602901e835400a181",
    "2003002800c00600d022827419e209",
    "2001003803400201300082d40da30b",
    "2003003801401a01301d83dc0da35d",
    "2001001802403201d014800c3ae1bd",
    "2003002803402e00101b825c3ca3b7",
    "2003003800c01a03b00880ac0da275",
    "2003000800c00a03502283fc2121cf",
    "2001002801402e02100682bc2f637f",
    "2001003801c00203d03d822c326155",
    "2001003802401a03d018837c1e6375",
    "2003001801400603701080dc0823c5",
    "2003000803c03e00d01883d42a23f3",
    "2003002803c03e03b01f818417239b",
    "2003000802c01600b02683e40f22cb",
)
DIMENSIONS = len(_DIRECTIONS)  # so many are spread; values of later ones are independent


class Source(Protocol):
    """What a value is drawn from: a generator of NumPy, or a `Point`."""

    def uniform(self, low: float, high: float) -> float: ...

    def integers(self, low: int, high: int | None = None) -> int: ...


@dataclass(frozen=True, slots=True)
class Point:
    """One number in [0, 1), asked for as a generator of NumPy is."""

    part: float

    def uniform(self, low: float, high: float) -> float:
        """The number of [low, high) that is at this part of the way."""
        return low + (high - low) * self.part

    def integers(self, low: int, high: int | None = None) -> int:
        """The integer of low, …, high - 1 at this part of the way (of 0, …, low - 1)."""
        if high is None:
            low, high = 0, low
        return min(int(low) + int(self.part * (int(high) - int(low))), int(high) - 1)


@dataclass(frozen=True, slots=True)
class Place:
    """Which draw of a study this is.

    `sample`: its number among those of its group. `group`: the number of the combination of grids
    for which it is drawn, of so many `groups`. Each group is spread by itself, and so are the first
    draws of all groups.
    """

    sample: int
    group: int = 0
    groups: int = 1


def source(seed: int, dimension: int, place: Place) -> Source:
    """What the value of that dimension (its number) is drawn from; a function of the arguments."""
    chance = np.random.default_rng([seed, dimension, place.group, place.sample])
    if place.sample >= POINTS or dimension >= DIMENSIONS:
        return chance
    cell = _cell(dimension, place.sample) ^ _shift(seed, dimension, place)
    return Point((cell + float(chance.random())) / POINTS)


def _shift(seed: int, dimension: int, place: Place) -> int:
    """What the sequence of a group is shifted by: all bits at random, but the groups' own apart."""
    shift = int(np.random.default_rng([seed, dimension]).integers(POINTS))
    group = place.group
    if group:
        chance = np.random.default_rng([seed, dimension, group])
        bits = min((place.groups - 1).bit_length(), POINTS.bit_length() - 1)
        apart = _cell(dimension, group % POINTS)
        shift ^= apart ^ int(chance.integers(POINTS >> bits))
    return shift


def _cell(dimension: int, number: int) -> int:
    """The cell of 0, …, POINTS - 1 in which the sequence has this point, in Gray code's order."""
    digits = _DIRECTIONS[dimension]
    gray = number ^ (number >> 1)
    cell = 0
    for bit in range(gray.bit_length()):
        if gray >> bit & 1:
            cell ^= int(digits[3 * bit : 3 * bit + 3], 16)
    return cell
