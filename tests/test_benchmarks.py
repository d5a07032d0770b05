"""What the benchmarks make of what they see, without running them."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.core.cluster import ShardId
from shoal.core.event import Advanced, Fell, Measured
from shoal.core.trial import TrialId, Visit
from shoal.engine.journal import Line

REPO = Path(__file__).resolve().parents[1]
BENCHMARKS = REPO / "benchmarks"
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

    half = Advanced({TRIAL: 4}, spent={TRIAL: {"train": 2.0, "switch": 0.5}}, moved={TRIAL: 100})
    visit = Visit(0, ShardId("s0"), 0, 0)
    rest = Advanced({TRIAL: 4}, visits={TRIAL: (visit,)}, spent={TRIAL: {"train": 1.0}})
    later = (9.0, (rest,))
    moments = iter([(2.0, (half,)), (2.5, (Measured(TRIAL, "x", {}),)), (3.0, (rest,)), later])
    spent, moved = until_visited(moments, TRIAL)
    assert (spent["train"], spent["switch"], spent["data"], moved) == (3.0, 0.5, 0.0, 100)
    assert next(moments) == later


# -- many.py -----------------------------------------------------------------------------------


def test_ratios_of_many_leave_out_what_took_too_long() -> None:
    from many import ratios, together

    rounds = [{"seconds": 20.0, "ms_a_trial": 2.0}, {"seconds": 40.0, "ms_a_trial": 4.0}]
    rows = [
        together("loop, saving", 10_000, rounds),
        together("shoal", 10_000, [{**rounds[0], "report_s": 4.0, "resume_s": "over 9 s"}]),
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

PLACE = {"device": "Some GPU", "torch": "2.11", "python": "3.12"}


@pytest.fixture
def gpu_call(tmp_path: Path, monkeypatch: Any) -> Any:
    """A call over items of one's own: its exit code, and what came of each."""
    import gpu

    monkeypatch.setattr(gpu, "place_of", lambda *_: PLACE)

    def call(*items: Any, minutes: float = 2.0, place: Any = PLACE) -> tuple[int, Any]:
        monkeypatch.setattr(gpu, "place_of", lambda *_: place)
        monkeypatch.setattr(gpu, "items", lambda *_: items)
        folders = {"results": tmp_path / "results", "copy": tmp_path / "out"}
        args = argparse.Namespace(device="cpu", short=True, minutes=minutes, **folders)
        code = gpu.call(args)
        (written,) = (tmp_path / "out").glob(f"{place['device'].replace(' ', '-')}*/items.json")
        return code, json.loads(written.read_text())["items"]

    return call


def an_item(name: str, code: str, **more: Any) -> Any:
    import gpu

    fields = {"seconds": 1.0, "limit": 60.0, "read": gpu.read_cases, "needs": {}}
    command = (sys.executable, "-c", code)
    return gpu.Item(name, lambda _: command, **{**fields, **more})


GOOD = """print('{"case": "a", "ok": true}')"""


def test_a_call_goes_on_with_what_is_left(gpu_call: Any, tmp_path: Path) -> None:
    """What passed is not begun again; what failed is, after what was never begun."""
    order = tmp_path / "order"
    noted = f"open({str(order)!r}, 'a').write('NAME '); " + GOOD
    items = [
        an_item("bad", noted.replace("NAME", "bad") + "; raise SystemExit('broken')"),
        an_item("long", noted.replace("NAME", "long"), seconds=500.0),
        an_item("good", noted.replace("NAME", "good")),
    ]
    code, came = gpu_call(*items)
    assert (code, set(came)) == (1, {"bad", "good"}), "the long one does not fit behind"
    assert "broken" in came["bad"]["tail"]
    code, came = gpu_call(*items)
    assert came["long"]["ok"], "alone it may begin"
    assert order.read_text().split() == ["bad", "good", "long", "bad"]
    assert (code, came["bad"]["tries"]) == (1, 2)
    assert gpu_call(*items)[0] == 1
    assert order.read_text().split() == ["bad", "good", "long", "bad"], "two tries"


def test_more_to_do_is_no_failure_and_goes_on(gpu_call: Any, tmp_path: Path) -> None:
    import gpu

    write = "import os, json; json.dump({'rows': [{'rounds': 1}], 'ratios': {'cells_missing': %d}},"
    write += " open(os.environ['SHOAL_RESULTS'] + '/cells.json', 'w'))"
    read = gpu.read_cells("cells")
    code, came = gpu_call(an_item("cells", write % 3, read=read))
    assert (code, came["cells"]["result"]) == (3, "1 cells timed, 3 to do")
    code, came = gpu_call(an_item("cells", write % 0, read=read))
    assert (code, came["cells"]["result"]) == (0, "1 cells timed")


@pytest.mark.slow
def test_cells_that_are_cut_short_are_no_failure_while_there_are_more(gpu_call: Any) -> None:
    import gpu

    code = "import os, json, time; json.dump({'rows': [{'rounds': 1}], "
    code += "'ratios': {'cells_missing': 1}}, open(os.environ['SHOAL_RESULTS'] "
    code += "+ '/cells.json', 'w')); time.sleep(60)"
    item = an_item("cells", code, read=gpu.read_cells("cells"), limit=15.0)
    assert gpu_call(item)[0] == 3, "one cell more than before"
    code_, came = gpu_call(item)
    assert (code_, came["cells"]["ok"]) == (1, False), "none more"


def test_what_cannot_start_or_tries_nothing_has_failed(gpu_call: Any) -> None:
    import gpu

    absent = gpu.Item("absent", lambda _: ("/no/such/program",), 1, 9, gpu.read_exit, {})
    items = [
        absent,
        an_item("silent", "pass"),
        an_item("no test", "pass", read=gpu.read_tests),
        an_item("no check", "pass", read=gpu.read_check),
        an_item("no row", "pass", read=gpu.read_file("nothing")),
        an_item("no cell", "pass", read=gpu.read_cells("nothing")),
        an_item("import", "import no_such_module", read=gpu.read_exit),
        an_item("unread", """print('{"case": "a"}')"""),
        an_item("lacks", GOOD, needs={"no_such_module": "such-package"}),
        an_item("good", GOOD),
    ]
    code, came = gpu_call(*items)
    assert code == 1
    assert {name for name, said in came.items() if said["ok"]} == {"good"}
    assert came["lacks"]["result"] == "not installed: such-package"
    assert "No such file" in came["absent"]["result"]


@pytest.mark.slow
def test_one_that_takes_too_long_is_killed_with_its_children(
    gpu_call: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """What it has written by then is kept, and was copied while it ran."""
    import gpu

    monkeypatch.setattr(gpu, "SYNC", 0.2)
    child = tmp_path / "child"
    code = (
        f"import os, subprocess, time; p = subprocess.Popen(['sleep', '60']); "
        f"open({str(child)!r}, 'w').write(str(p.pid)); {GOOD.rstrip(')')}, flush=True); "
        f"open(os.environ['SHOAL_RESULTS'] + '/part.json', 'w').write('1'); time.sleep(60)"
    )
    published: list[bool] = []
    publish = gpu.Results.publish

    def noted(results: Any) -> None:
        publish(results)
        published.append((results.copy / "part.json").exists())

    monkeypatch.setattr(gpu.Results, "publish", noted)
    exit_code, came = gpu_call(an_item("slow", code, limit=20.0))
    said = came["slow"]
    assert (exit_code, said["ok"], said["tries"]) == (1, False, 1)
    assert said["result"] == "not over after 20 s; 1 of 1 cases ok"
    assert True in published[:-1], "only at its end"
    status = Path("/proc") / child.read_text() / "status"
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_results_of_another_device_or_torch_lie_beside(gpu_call: Any, tmp_path: Path) -> None:
    item = an_item("a", GOOD)
    assert gpu_call(item)[0] == 0
    assert gpu_call(item, place={**PLACE, "device": "Other GPU"})[0] == 0
    folders = {path.name for path in (tmp_path / "out").iterdir()}
    assert folders == {"Some-GPU-torch-2.11", "Other-GPU-torch-2.11"}
    (tmp_path / "results" / "Some-GPU-torch-2.11" / "items.json").write_text("{half")
    assert gpu_call(item)[0] == 0, "a damaged file begins anew"


def test_results_of_packing_on_the_same_card_are_added_to(monkeypatch: Any) -> None:
    """Device and torch say whether; another NumPy or machine of such a card is no reason."""
    import packing

    found = {"ratios": {"device": "Some GPU"}, "versions": {"torch": "2.11", "numpy": "1"}}
    monkeypatch.setattr(packing, "versions", lambda: {"torch": "2.11", "numpy": "2"})
    assert packing.same_place(found, "Some GPU")
    assert not packing.same_place(found, "Other GPU")
    monkeypatch.setattr(packing, "versions", lambda: {"torch": "2.12", "numpy": "1"})
    assert not packing.same_place(found, "Some GPU")


def test_a_folder_that_cannot_be_copied_to_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import gpu

    (tmp_path / "file").write_text("")
    results = gpu.Results(tmp_path / "results", tmp_path / "file", PLACE)
    results.note(an_item("a", GOOD), {"ok": True, "result": ""})
    assert "could not be copied" in capsys.readouterr().out


def test_what_is_worth_most_a_second_comes_first() -> None:
    import gpu

    names = [item.name for item in gpu.items("cuda", False)]
    assert names[:4] == ["smoke", "packing, key cells", "memory", "tests marked device"]
    command = list(gpu.items("cuda", False)[1].command(120.0))
    nets = command[command.index("--nets") + 1 : command.index("--models")]
    models = command[command.index("--models") + 1 : command.index("--batches")]
    assert nets == ["MLP-3 x64", "CNN, 3x32x32", "ResNet-18"] and models == ["2", "8", "32"]
    assert command[-2:] == ["--seconds", "95"] and "32" in command
    for device, short in (("cuda", False), ("cpu", True)):
        for item in gpu.items(device, short):
            words = item.command(60.0)
            there = [
                REPO / word for word in words if word.endswith(".py") or word.startswith("tests/")
            ]
            assert all(path.exists() for path in there), item.name


def hiding(folder: Path, *names: str) -> dict[str, str]:
    """An environment in which Python does not find these packages; paths given stay."""
    (folder / "sitecustomize.py").write_text(
        f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(finder, name, path=None, target=None):
    return None if name.partition(".")[0] in {names!r} else find(name, path, target)

PathFinder.find_spec = classmethod(find_spec)
"""
    )
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("hidden", "device", "says"),
    [
        (
            ("filelock", "msgspec"),
            "cpu",
            r"Python 3\.\d+ at \S+ lacks filelock, msgspec; docs/gpu.md says how .*",
        ),
        ((), "cuda", "device 'cuda' does not work: .*"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path, hidden: tuple[str, ...], device: str, says: str
) -> None:
    if device == "cuda" and torch_sees_a_gpu():
        pytest.skip("there is a GPU here")
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu.py", "--device", device, "--results", tmp_path],
        cwd=REPO,
        env=hiding(tmp_path, *hidden),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and not done.stderr
    assert re.fullmatch(f"cannot begin: {says}\n", done.stdout), done.stdout


def torch_sees_a_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def test_make_gpu_keeps_the_path_that_carries_wheels() -> None:
    done = subprocess.run(
        ["make", "-s", "gpu", "PYTHON=printenv PYTHONPATH; true"],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": "/some/wheels"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{REPO}:/some/wheels"


# What a bare machine does not have, and what tests use if it is there.
ABSENT = ("ray", "pyarrow", "optuna", "pandas", "lightning", "transformers", "datasets")
ABSENT_TOO = ("torchmetrics", "h5py", "PIL", "sklearn", "accelerate", "keras")


@pytest.mark.slow
def test_tests_marked_device_are_found_on_a_bare_machine(tmp_path: Path) -> None:
    """A module that needs what is not there skips itself: it is no error of the device."""
    import gpu

    command = gpu.tests("cpu", False).command(60.0)
    done = subprocess.run(
        [*command, "--collect-only"],
        cwd=REPO,
        env=hiding(tmp_path, *ABSENT, *ABSENT_TOO),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "tests/train/fuse/test_fused.py" in done.stdout


@pytest.mark.nightly  # minutes of what a machine with a GPU runs; its parts are tested above
@pytest.mark.timeout(900)
def test_the_stand_in_runs_whole_without_ray(tmp_path: Path) -> None:
    """As on a bare machine: no Ray, nothing that is not needed; results go to $OUT."""
    (tmp_path / "out").mkdir()
    environment = {**hiding(tmp_path, *ABSENT), "OUT": str(tmp_path / "out")}
    done = subprocess.run(
        ["make", "-s", "gpu", f"PYTHON={sys.executable}", "GPU=--device cpu --short"],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    came = json.loads((folder / "items.json").read_text())["items"]
    assert len(came) == 9 and all(said["ok"] for said in came.values())
    assert came["smoke"]["result"] == came["memory"]["result"] == "4 of 4 cases ok"
    assert "sequential / chosen" in done.stdout and "ResNet" not in done.stdout


def test_what_tests_came_to_is_read(tmp_path: Path) -> None:
    import gpu

    output = "..F\nFAILED tests/a.py::test_b - assert 0\n1 failed, 2 passed, 1 skipped in 3.2s\n"
    said = gpu.read_tests(1, output, tmp_path)
    assert said["result"] == "1 failed, 2 passed, 1 skipped"
    assert said["failed"] == ["FAILED tests/a.py::test_b"]
    assert not gpu.read_tests(0, "3 skipped in 0.1s", tmp_path)["ok"]


def test_without_mps_it_says_why(monkeypatch: Any) -> None:
    import mps

    monkeypatch.setattr(mps, "CONTROL", "no-such-program")
    with mps.serving() as environment:
        assert environment == "there is no no-such-program here"


def test_the_table_of_a_gpu_has_its_ways_and_its_name(tmp_path: Path, monkeypatch: Any) -> None:
    import packing_page

    times = dict.fromkeys((*packing_page.GPU_WAYS, "chosen"), 0.1)
    compared = {"chosen_over_best": 1.0, "sequential_over_chosen": 2.0}
    row = {"net": "CNN", "models": 4, "batch": 32, "alone": 0.03, **times, **compared}
    row |= {"fused_over_sequential": 0.5, "choice": "fused by 4", "best": "fused", "rounds": 3}
    ratios = {"device": "Some GPU", "left_out": 0, "cells_missing": 0}
    ratios |= {"chosen_over_best": 1.0, "chosen_over_best_at": "CNN, 4 models, batch 32"}
    content = {"rows": [row], "ratios": ratios, "versions": {"torch": "2.11"}}
    packed = {"name": "packing-gpu", "machine": {"cpu": "Some CPU"}, **content}
    folder = tmp_path / "gpu" / "Some-GPU-torch-2.11"
    folder.mkdir(parents=True)
    (folder / "packing-gpu.json").write_text(json.dumps(packed))
    del row["processes"], row["processes, MPS"]
    key = {"rows": [{**row, "steps": 5, "sequential_over_chosen": 2.5}]}
    (folder / "packing-key.json").write_text(json.dumps(key))
    failed = {"ok": False, "result": "1 failed", "failed": ["F t::a"]}
    done = {"place": PLACE, "items": {"tests marked device": failed}}
    (folder / "items.json").write_text(json.dumps(done))
    monkeypatch.setattr(packing_page, "RESULTS", tmp_path)
    page = packing_page.gpu_markdown()
    assert "### Some GPU, torch 2.11" in page
    assert "Some CPU, Some GPU, torch 2.11" in page
    assert "| tests marked device | **not ok**: 1 failed `F t::a` |" in page
    assert "| CNN | 4 | 20 | 20 | 20 | **20** | 20 | fused by 4 | 1.00 | 2.50 |" in page
    heads = "| net | models | batch | one model | sequential | processes | processes, MPS |"
    assert heads + " interleaved | streams | fused | chosen | choice |" in page
    assert "| CNN | 4 | 32 | 30 | 100 | 100 | 100 | 100 | 100 | **100** | 100 |" in page


# -- feed.py -----------------------------------------------------------------------------------


def test_ratios_of_feed_are_against_the_quicker_way_and_the_headline_is_the_least() -> None:
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


@pytest.mark.nightly
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

    from shoal.simulate.idle_log import IdleLog

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
