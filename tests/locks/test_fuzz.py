"""Whatever a file holds: it is read, or refused by one clear error, in bounded memory and time.

`FUZZ=10000 pytest tests/locks/test_fuzz.py -m soak` is the full form; with `FUZZ_TABLE=FILE` it
writes the table of docs/security.md.
"""

import os
from pathlib import Path

import pytest
from fuzz_kit import Reader, Tally, damaged, damages, little_memory, tries, try_on
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="it reads Parquet and Arrow")
from readers_of_data import READERS as OF_DATA
from readers_of_studies import READERS as OF_STUDIES

ALL = [*OF_STUDIES, *OF_DATA]
QUICK = 15
MORE = 512  # MiB that a reader may take
NAMES = [reader.name for reader in ALL]


def fuzz(reader: Reader, folder: Path, examples: int) -> Tally:
    """Have the reader read so many files; first those that were forged by hand."""
    tally = Tally()
    seeds = reader.seeds() if callable(reader.seeds) else reader.seeds
    for content in (*seeds, b"", b"\0" * 1000, b"{" * 100000, b"[" * 100000):
        with little_memory(MORE):
            try_on(reader, folder, content, tally)

    contents = st.one_of(
        st.binary(max_size=2000),
        st.builds(damaged, st.sampled_from(list(seeds)), damages()),
        st.builds(damaged, st.sampled_from(list(seeds)), damages()),
        st.builds(damaged, st.sampled_from(list(seeds)), damages()),
    )

    @tries(examples, QUICK)
    @given(contents)
    def check(content: bytes) -> None:
        with little_memory(MORE):
            try_on(reader, folder, content, tally)

    check()
    return tally


@pytest.mark.parametrize("reader", ALL, ids=NAMES)
def test_a_damaged_file_is_refused(reader: Reader, tmp_path: Path) -> None:
    fuzz(reader, tmp_path, QUICK)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("reader", ALL, ids=NAMES)
def test_many_damaged_files_are_refused(reader: Reader, tmp_path: Path) -> None:
    tally = fuzz(reader, tmp_path, int(os.environ.get("FUZZ", "10000")))
    table = os.environ.get("FUZZ_TABLE")
    if table is not None:
        with open(table, "a", encoding="utf-8") as file:
            file.write(tally.line(reader.name) + "\n")
