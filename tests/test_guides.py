"""The guides by task: short, and what they show is what happens."""

import re
import shutil
from pathlib import Path

import pytest
import shown_kit as kit
from page_kit import DOCS, ROOT, fences

GUIDES = DOCS / "guides"
PAGES = sorted(GUIDES.glob("*.md"))
ON_RAY = "data-larger-than-a-node"
MOST_WORDS = 400


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_guide_is_short_and_has_links(page: Path) -> None:
    assert kit.words(page) <= MOST_WORDS
    assert len(re.findall(r"\]\(\.\./\w+\.md", page.read_text())) >= 2


def test_a_file_is_the_same_in_every_guide() -> None:
    files = {
        (block.title, block.text)
        for page in PAGES
        for block in fences(page.read_text())
        if block.title == "digits.py"
    }
    assert len(files) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem != ON_RAY], ids=lambda page: page.stem
)
def test_what_a_guide_shows_happens(page: Path, folder: Path) -> None:
    kit.run_page(page, folder)


@pytest.mark.slow
def test_what_the_guide_to_shards_shows_happens_on_ray(folder: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra")
    kit.run_page(GUIDES / f"{ON_RAY}.md", folder)


@pytest.mark.slow
def test_what_a_first_run_shows_happens(folder: Path) -> None:
    shutil.copy(ROOT / "examples" / "digits.py", folder)
    kit.run_page(DOCS / "install.md", folder)


@pytest.mark.slow
def test_the_commands_of_the_home_page_run(folder: Path) -> None:
    """One trains a module of Lightning, the other a program; both are in train.py."""
    pytest.importorskip("lightning", reason="Lightning is an extra")
    module = fences((DOCS / "compare" / "lightning.md").read_text())[0].text
    for old, new in (("class Classifier", "class LitModel"), ("width, lr)", "lr, width=8)")):
        assert module.count(old) == 1
        module = module.replace(old, new)
    files = [module, "import sys\nprint(f'loss={float(sys.argv[2])}')\n"]
    shown = [each.text for each in fences((DOCS / "index.md").read_text())]
    commands = [text for text in shown if text.startswith("shoal run ")]
    for text, command in zip(files, commands, strict=True):
        (folder / "train.py").write_text(text)
        assert not kit.missing("study    …: finished\n", kit.run(command, folder))
        shutil.rmtree(folder / "runs")


def test_questions_have_short_answers_with_links() -> None:
    """At most four sentences each."""
    text = (DOCS / "faq.md").read_text()
    asked = re.findall(r"^#+ ([^\n]+\?)\n\n(.*?)(?=\n\n#|\Z)", text, re.M | re.S)
    assert 15 <= len(asked) <= 22
    for question, answer in asked:
        plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", answer))
        assert len(re.findall(r"[.!?](?=\s|$)", plain)) <= 4, question
        assert "](" in answer, question


def test_lines_are_compared_without_what_is_measured() -> None:
    printed = "a\ntrials   40: 40 finished\ntime     2.17 s\nbest  accuracy 0.98050 t038  lr=0.03\n"
    assert not kit.missing("trials   40: 40 finished\n…\ntime 31 min\n", printed)
    assert not kit.missing("best  accuracy 0.97 t001  lr=0.1\n", printed)
    assert kit.missing("trials   40: 39 finished, 1 failed\n", printed)
    assert kit.missing("time     2.17 s\ntrials   40: 40 finished\n", printed), "in another order"
    assert kit.missing("best  loss 0.98050 t038  lr=0.03\n", printed)
    assert not kit.missing("best … t001  lr=0.1\n", printed)
    assert kit.missing("worst …\n", printed)
