"""What the benchmarks make of what they see, without running them."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.core.cluster import ShardId
from shoal.core.event import Advanced, Fell, Measured
from shoal.core.trial import TrialId, Visit
from shoal.engine.journal import Line

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
TRIAL = TrialId("t0")


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts can be imported; papers/ has a module `common`, too, which is another one."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "common", raising=False)


def test_a_unit_has_ended_when_its_visit_is_complete_not_when_it_reports() -> None:
    """On a slow machine a unit of hop.py takes longer than the two seconds between reports."""
    pytest.importorskip("ray")
    from hop import until_visited

    half = Advanced(
        {TRIAL: 4}, spent={TRIAL: {"train": 2.0, "switch": 0.5}}, moved={TRIAL: 100}
    )
    visit = Visit(0, ShardId("s0"), 0, 0)
    rest = Advanced({TRIAL: 4}, visits={TRIAL: (visit,)}, spent={TRIAL: {"train": 1.0}})
    later = (9.0, (rest,))
    moments = iter(
        [(2.0, (half,)), (2.5, (Measured(TRIAL, "x", {}),)), (3.0, (rest,)), later]
    )
    spent, moved = until_visited(moments, TRIAL)
    assert (spent["train"], spent["switch"], spent["data"], moved) == (
        3.0,
        0.5,
        0.0,
        100,
    )
    assert next(moments) == later


# -- many.py -----------------------------------------------------------------------------------


def test_ratios_of_many_leave_out_what_took_too_long() -> None:
    from many import ratios, together

    rounds = [
        {"seconds": 20.0, "ms_a_trial": 2.0},
        {"seconds": 40.0, "ms_a_trial": 4.0},
    ]
    rows = [
        together("loop, saving", 10_000, rounds),
        together(
            "shoal", 10_000, [{**rounds[0], "report_s": 4.0, "resume_s": "over 9 s"}]
        ),
        together("shoal", 1_000, [{"seconds": 9.0, "note": "over 9 s"}]),
    ]
    found = ratios(rows)
    assert found["many_over_loop_10000"] == pytest.approx(2 / 3)
    assert "growth" not in found
    assert found["missed"] == [
        "growth: not measured, goal 1.3",
        "report_s_10000: 4, goal 3",
        "report_MB_10000: not measured, goal 12",
        "resume_s_10000: over 9 s, goal 3",
    ]


# -- gpu.py ------------------------------------------------------------------------------------


@pytest.fixture
def args(tmp_path: Path) -> argparse.Namespace:
    (tmp_path / "copy").mkdir()
    folders = {"results": tmp_path / "results", "copy": tmp_path / "copy"}
    return argparse.Namespace(device="cpu", short=True, minutes=2.0, **folders)


def a_step(gpu: Any, name: str, program: str, seconds: float = 1.0, **more: Any) -> Any:
    return gpu.Step(
        name, (sys.executable, "-c", program), seconds, gpu.read_json, **more
    )


def test_parts_continue_one_another(args: argparse.Namespace, monkeypatch: Any) -> None:
    """A part does what there is time for; the next one goes on with what is left."""
    import gpu

    good = """print('{"ok": true, "a": 1}')"""
    left = [True, False]
    steps = [
        a_step(gpu, "first", good),
        a_step(gpu, "twice", good, again=lambda: left.pop(0)),
        a_step(gpu, "bad", "raise SystemExit('broken')"),
        a_step(gpu, "long", good, seconds=500.0),
    ]
    monkeypatch.setattr(gpu, "steps", lambda args, results: steps)
    assert not gpu.part(args)
    assert gpu.part(args) is False, "'long' does not fit behind 'twice'"
    assert gpu.part(args), "alone it may begin"
    assert gpu.part(args), "all is over: nothing is done again"
    said = json.loads((args.copy / "gpu.json").read_text())["steps"]
    assert {name: each["ok"] for name, each in said.items()} == {
        "first": True,
        "twice": True,
        "bad": False,
        "long": True,
    }
    assert "broken" in said["bad"]["tail"]
    assert not left


def test_a_step_that_takes_too_long_is_begun_twice(
    args: argparse.Namespace, monkeypatch: Any
) -> None:
    import gpu

    slow = a_step(gpu, "slow", "import time; time.sleep(60)")
    monkeypatch.setattr(gpu, "steps", lambda args, results: [slow])
    monkeypatch.setattr(gpu, "LEAST", 0.0)
    args.minutes = 1 / 60
    assert not gpu.part(args)
    assert gpu.part(args)
    (said,) = json.loads((args.results / "gpu.json").read_text())["steps"].values()
    assert (said["tries"], said["ok"]) == (2, False)


def test_results_of_another_gpu_are_not_continued(
    args: argparse.Namespace, monkeypatch: Any
) -> None:
    import gpu

    step = a_step(gpu, "a", """print('{"ok": true}')""")
    monkeypatch.setattr(gpu, "steps", lambda args, results: [step])
    gpu.part(args)
    monkeypatch.setattr(gpu, "place_of", lambda device: {"device": "another"})
    with pytest.raises(SystemExit, match="another"):
        gpu.part(args)


def test_what_tests_came_to_is_read() -> None:
    import gpu

    output = "..F\nFAILED tests/a.py::test_b - assert 0\n1 failed, 2 passed, 1 skipped in 3.2s\n"
    said = gpu.read_tests(1, output)
    assert said["result"] == "1 failed, 2 passed, 1 skipped"
    assert said["failed"] == ["FAILED tests/a.py::test_b"]


def test_without_mps_it_says_why(monkeypatch: Any) -> None:
    import mps

    monkeypatch.setattr(mps, "CONTROL", "no-such-program")
    with mps.serving() as environment:
        assert environment == "there is no no-such-program here"


def test_the_table_of_a_gpu_has_its_ways_and_its_name(
    tmp_path: Path, monkeypatch: Any
) -> None:
    import packing_page

    times = dict.fromkeys((*packing_page.GPU_WAYS, "chosen"), 0.1)
    compared = {"chosen_over_best": 1.0, "sequential_over_chosen": 2.0}
    row = {"net": "CNN", "models": 4, "batch": 32, "alone": 0.03, **times, **compared}
    row |= {
        "fused_over_sequential": 0.5,
        "choice": "fused by 4",
        "best": "fused",
        "rounds": 3,
    }
    ratios = {"device": "Some GPU", "left_out": 0, "cells_missing": 0}
    ratios |= {
        "chosen_over_best": 1.0,
        "chosen_over_best_at": "CNN, 4 models, batch 32",
    }
    content = {"rows": [row], "ratios": ratios, "versions": {"torch": "2.11"}}
    packed = {"name": "packing-gpu", "machine": {"cpu": "Some CPU"}, **content}
    (tmp_path / "packing-gpu.json").write_text(json.dumps(packed))
    done = {
        "place": {"device": "Some GPU", "torch": "2.11", "python": "3.12"},
        "steps": {},
    }
    done["steps"] = {
        "tests/train/fuse": {"ok": False, "result": "1 failed", "failed": ["F t::a"]}
    }
    (tmp_path / "gpu.json").write_text(json.dumps(done))
    monkeypatch.setattr(packing_page, "RESULTS", tmp_path)
    page = packing_page.gpu_markdown()
    assert "Some CPU, Some GPU, torch 2.11" in page
    assert "| tests/train/fuse | **not ok**: 1 failed `F t::a` |" in page
    heads = (
        "| net | models | batch | one model | sequential | processes | processes, MPS |"
    )
    assert heads + " interleaved | streams | fused | chosen | choice |" in page
    assert "| CNN | 4 | 32 | 30 | 100 | 100 | 100 | 100 | 100 | **100** | 100 |" in page


# -- feed.py -----------------------------------------------------------------------------------


def test_ratios_of_feed_are_against_the_quicker_way_and_the_headline_is_the_least() -> (
    None
):
    pytest.importorskip("pyarrow", reason="pip install pyarrow")
    from feed import ratios

    def row(side: str, models: int, workers: int, speed: float, **more: Any) -> Any:
        row = {"side": side, "format": "images", "models": models, "workers": workers}
        return {**row, "samples/s": speed, **more}

    out = {"out of core": True}
    found = ratios(
        [
            row("shoal", 1, 0, 30.0),
            row("loaders", 1, 0, 20.0),
            row("shoal", 1, 1, 30.0),
            row("loaders", 1, 1, 25.0),
            row("shoal", 4, 1, 90.0),
            row("loaders at once", 4, 1, 30.0),
            row("shoal", 4, 0, 90.0),
            row("loaders at once", 4, 0, 10.0),
            row("shoal", 1, 1, 9.0, **out),
            row("loaders", 1, 1, 10.0, **out),
        ]
    )
    assert found == {
        "feed_over_dataloader_0_workers": 1.5,
        "feed_over_dataloader_1_workers": 1.2,
        "feed_over_dataloader": 1.2,
        "four_models_over_four_loaders_0_workers": 4.5,
        "four_models_over_four_loaders_1_workers": 3.0,
        "four_models_over_four_loaders": 3.0,
        "out_of_core_over_dataloader_images": 0.9,
        "out_of_core_over_dataloader": 0.9,
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "arrow", "tar"])
def test_feed_trains_out_of_each_format(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pip install pyarrow")
    import feed

    feed.made(feed.ROWS * 2, tmp_path)
    same = {}
    dataset = feed.Files(tmp_path, kind)
    same["loader"] = sorted(dataset.read(n)[0].tobytes() for n in range(len(dataset)))
    data = feed.Pictures(tmp_path, kind).data()
    parts = [data.read(part) for part in data.shards]
    pictures = [p["pixels"] if kind == "arrow" else p[0] for p in parts]
    same["shoal"] = sorted(each.tobytes() for part in pictures for each in part)
    assert same["shoal"] == same["loader"], "both sides see the same pixels"
    asked = {"models": 1, "epochs": 1, "workers": 0, "memory": None}
    assert feed.of_shoal(tmp_path, kind, asked) > 0
    assert feed.of_loader(tmp_path, kind, asked) > 0


# -- harvest.py --------------------------------------------------------------------------------


def test_what_a_log_offers_is_the_idle_time_of_its_nodes() -> None:
    pytest.importorskip("ray")
    from harvest import COMPRESSED, compressed, offered

    from shoal.simulate.trace import IdleLog

    log = IdleLog.of([("a", -30.0, 60.0), ("b", 30.0, 90.0), ("a", 90.0, 1e9)], 120.0)
    changes = compressed(log.window(0.0, 120.0))
    assert [(at * COMPRESSED, *more) for at, *more in changes] == [
        (0.0, "come", "a"),
        (30.0, "come", "b"),
        (60.0, "go", "a"),
        (90.0, "go", "b"),
        (90.0, "come", "a"),
    ]
    assert offered(changes, 120.0 / COMPRESSED) * COMPRESSED == pytest.approx(150.0)


def test_samples_that_were_lost_again_do_not_count() -> None:
    pytest.importorskip("ray")
    from harvest import samples

    lines = [
        Line(1.0, Advanced({TRIAL: 10.0})),
        Line(3.0, Advanced({TRIAL: 10.0})),
        Line(4.0, Fell(TRIAL, 1, 10.0)),
        Line(5.0, Advanced({TRIAL: 7.0})),
        Line(9.0, Advanced({TRIAL: 10.0})),
    ]
    assert samples(lines, 0.0, 3.5) == 20.0
    assert samples(lines, 0.0, 6.0) == 17.0
    assert samples(lines, 2.0, 6.0) == 7.0


def test_the_simulator_foretells_a_slice_from_what_was_measured() -> None:
    pytest.importorskip("ray")
    from harvest import Known, predicted

    from shoal.profile.table import Row

    slot = Known(320.0, Row((320.0,)), start=5.0)
    changes = [
        (0.0, "come", "a"),
        (10.0, "come", "b"),
        (12.0, "go", "b"),  # before it was a slot
        (20.0, "come", "c"),
    ]
    made, per_slot = predicted(changes, 40.0, slot)
    # a for 40 s; c from 25 s on
    assert made == pytest.approx(320.0 * 55.0, rel=0.02)
    assert per_slot == pytest.approx(320.0, rel=0.02)
