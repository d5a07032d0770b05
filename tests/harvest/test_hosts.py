"""Slurm's short forms of lists."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.harvest.hosts import counts, hosts


def test_host_lists():
    assert hosts("n[1-3,07],login,c[1]n") == ["n1", "n2", "n3", "n07", "login", "c1n"]
    assert hosts("r[1-2]n[08-09]") == ["r1n08", "r1n09", "r2n08", "r2n09"]


@pytest.mark.parametrize(
    "bad", ["n[3-1]", "n[1-", "n[a-b]", "n[]", "n1,,n2", "n]1", "n[1-2-3]", "", "n[²]"]
)
def test_what_is_no_host_list(bad):
    with pytest.raises(ValueError, match="not a host list"):
        hosts(bad)


@pytest.mark.parametrize(
    "endless", ["n[1-9999999999]", "n[1-9999][1-9999]", "n[1-600000],m[1-600000]"]
)
def test_lists_of_billions_are_refused_at_once(endless):
    with pytest.raises(ValueError, match="list"):
        hosts(endless)


NAMES = st.from_regex(r"[a-z]{1,5}", fullmatch=True)


@given(NAMES, st.lists(st.integers(0, 999), min_size=1), st.integers(1, 4))
def test_numbers_are_read_as_they_were_written(name, numbers, width):
    written = [f"{number:0{width}d}" for number in numbers]
    assert hosts(f"{name}[{','.join(written)}]") == [name + each for each in written]


@given(NAMES, st.integers(0, 500), st.integers(0, 50), st.integers(1, 5))
def test_ranges_keep_their_zeros(name, low, more, width):
    first = f"{low:0{width}d}"
    found = hosts(f"{name}[{first}-{low + more}]")
    assert [int(each.removeprefix(name)) for each in found] == [*range(low, low + more + 1)]
    assert found[0] == name + first


@given(st.text(alphabet="n0123-[],(x) \n²é"))
def test_any_text_is_a_list_or_one_error(text):
    for read in (hosts, counts):
        with suppress(ValueError):
            assert read(text)


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(1, 40)), min_size=1, max_size=9))
def test_counts_repeat(runs):
    listed = ",".join(str(n) if times == 1 else f"{n}(x{times})" for n, times in runs)
    expected = [n for n, times in runs for _ in range(times)]
    assert counts(listed) == expected


@pytest.mark.parametrize("bad", ["", "4(x2", "4(x)", "-1", "4,,8", "4 (x2)", "²"])
def test_what_is_no_list_of_counts(bad):
    with pytest.raises(ValueError, match="not a list of counts"):
        counts(bad)


def test_counts_of_billions_are_refused_at_once():
    with pytest.raises(ValueError, match="at most"):
        counts("1(x999999999)")
