"""Where README.md and docs/ have figures of benchmarks/results. See `figures.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import packing_page
import packing_pictures
from choice_page import choices
from figure_rules import Block, Rule, Sentence, sentence
from option_table import options_table
from results import Row, benchmark, ratio, row, rows
from selection_tables import markdown as selection_markdown

PAGE = "docs/benchmarks.md"


def readme() -> list[Sentence]:
    seconds = [
        row("tune_grid", variant=name)["wall_s"]
        for name in ("local", "tune_default", "tune_reuse", "loop")
    ]
    four = {"format": "images", "models": 4, "workers": 1}
    fed = [row("feed", side=side, **four)["samples/s"] for side in ("shoal", "loaders at once")]
    step = row("step", net="CNN")
    pause = {
        name: max(each["seconds"] for each in rows("rescale", **{"with": name}))
        for name in ("shoal", "torchrun", "ray train")
    }
    trial = [
        row("many", way=way, trials=10_000)["ms_a_trial"]
        for way in ("shoal", "optuna, in memory", "optuna, journal")
    ]
    page, script = "README.md", "(https://github.com/shoal-train/shoal/blob/main/benchmarks/{}.py)"
    return [
        sentence(
            page,
            "seconds | **{:.1f}** | Ray Tune {:.1f} as it comes, {:.1f} with reused actors; "
            "a plain loop {:.1f} |",
            *seconds,
        ),
        sentence(
            page,
            "[Four models over {:_} JPEG files]" + script.format("feed") + " in {} passes, one "
            "worker a loader, pictures kept once decoded, thousand samples a second | **{:.1f}** | "
            "four PyTorch DataLoaders at once, which decode in each pass, {:.1f} |",
            ratio("feed", "files"),
            ratio("feed", "epochs"),
            *(each / 1000 for each in fed),
        ),
        sentence(
            page,
            "[A step of one small CNN]"
            + script.format("step")
            + ", milliseconds | **{:.2f}** | Lightning {:.2f}; a plain loop {:.2f}, with "
            "Adam's fused kernel {:.2f} |",
            *(step[f"{way}_ms"] for way in ("shoal", "lightning", "plain", "plain_fused")),
        ),
        sentence(
            page,
            "longest pause, seconds | **{:.1f}** | torchrun {:.1f}; Ray Train {:.1f} |",
            *pause.values(),
        ),
        sentence(
            page,
            "milliseconds a trial | {:.1f} | **Optuna {:.1f}** around a plain loop, {:.1f} with "
            "its journal in a file |",
            *trial,
        ),
    ]


def compared() -> list[Sentence]:
    """The pages for those who come from another tool."""
    nets = [row("step", net=name) for name in ("MLP", "CNN", "transformer")]
    ways = ("tune_default", "tune_reuse", "local", "ray2")
    searches = [row("hyperband", variant=name)["training_s"] for name in ("tune", "ours")]
    changes = {
        name: [each["seconds"] for each in rows("rescale", **{"with": name})]
        for name in ("shoal", "ray train")
    }
    return [
        sentence(
            "docs/compare/optuna.md",
            "An Optuna search around a plain loop takes {:.2f} of Shoal's time, and {:.2f} with "
            "Optuna's journal in a file",
            ratio("many", "optuna_over_shoal_10000"),
            ratio("many", "optuna_journal_over_shoal_10000"),
        ),
        sentence(
            "docs/compare/ray-tune.md",
            "Ray Tune as it comes takes {:.1f} s, with `reuse_actors=True` {:.1f} s; Shoal takes "
            "{:.1f} s in one process, and {:.1f} s on two slots of Ray",
            *(row("tune_grid", variant=name)["wall_s"] for name in ways),
        ),
        sentence(
            "docs/compare/ray-tune.md",
            "{:.1f} s with Ray Tune and reused actors, {:.1f} s with Shoal",
            *searches,
        ),
        sentence(
            "docs/compare/ray-tune.md",
            "is changed in {:.1f} s at most by Shoal, without a restart; Ray Train, stopped and "
            "restored, takes {:.1f} s at least",
            max(changes["shoal"]),
            min(changes["ray train"]),
        ),
        sentence(
            "docs/compare/lightning.md",
            "A step of Lightning's Trainer takes {:.2f} times as long as Shoal's for a tiny MLP, "
            "{:.2f} times for a CNN and {:.2f} times for a small transformer",
            *(net["lightning_over_shoal"] for net in nets),
        ),
    ]


def first_table() -> list[Sentence]:
    return [
        *simulations(),
        *moves_and_plans(),
        *widths(),
        thousands(),
        *harvested(),
        alone(),
        feeding(),
    ]


def simulations() -> list[Sentence]:
    equal = row("sim", speeds="equal", rule="rotation")
    unlike = row("sim", speeds="unlike", rule="rotation")
    lrw = [row("sim", speeds=speeds, rule="lrw")["cpu_s"] for speeds in ("equal", "unlike")]
    sizes = benchmark("elastic")["rows"]
    against = [each["count_milp_ms"] / each["shoal_ms"] for each in sizes]
    return [
        sentence(
            PAGE,
            "`hop` {:.1f} s with equal speeds, {:.1f} s with all unlike ({:_} decisions); "
            "`hop-lrw` {:.1f} and {:.1f} s",
            equal["cpu_s"],
            unlike["cpu_s"],
            unlike["decisions"],
            *lrw,
        ),
        sentence(
            PAGE,
            "200 trials on 10 000 nodes: {:.2f} ms; the same optimum by a program over counts "
            "takes {:.0f} to {:.0f} times as long at five sizes",
            row("elastic", trials=200)["shoal_ms"],
            min(against),
            max(against),
        ),
        sentence(
            PAGE,
            "1024 nodes and 1000 trials: {:.0f} s; 4734 nodes and 2000 trials: {:.0f} s",
            row("replay", nodes=1024, placement="index")["cpu_s"],
            row("replay", nodes=4734, placement="index")["cpu_s"],
        ),
    ]


def moves_and_plans() -> list[Sentence]:
    small = row("hop", optimizer="SGD")
    large = row("hop", optimizer="Adam")
    planned = [each["predicted_over_trained"] for each in benchmark("plan")["rows"]]
    return [
        sentence(
            PAGE,
            "100 MB: {:.0f} ms, of which loading {:.0f} ms; a warm copy takes {:.1f} ms. "
            "300 MB: {:.0f} ms against {:.0f} ms",
            small["hop_ms"],
            small["of_it_load_ms"],
            small["copy_ms"],
            large["hop_ms"],
            large["copy_ms"],
        ),
        sentence(
            PAGE,
            "predicted / trained {:.2f} (median of 5; {:.2f} to {:.2f})",
            ratio("plan", "predicted_over_trained"),
            min(planned),
            max(planned),
        ),
    ]


def widths() -> list[Sentence]:
    alone = row("rescaled", batch="global", slots="1")
    mean = {each["policy"]: each["mean_completion_s"] for each in benchmark("arrivals")["rows"]}
    curves = benchmark("wide-curve")["rows"]
    wider = [each for each in curves if each["measured at"] != "1"]
    on_ray = ("few", "many", "mix", "giant", "odd", "midway")
    return [
        sentence(
            PAGE,
            "all done after {:.1f} s with one slot each, {:.1f} s with widening: {:.2f} times",
            row("rungs", way="fixed")["makespan_s"],
            row("rungs", way="widened")["makespan_s"],
            ratio("rungs", "fixed_over_widening"),
        ),
        sentence(
            PAGE,
            "{:.3f} with three unequal models, {:.3f} with ten whose mean end counts, {:.3f} with "
            "small and large mixed, {:.3f} with a giant, {:.3f} with ten equal ones on four slots, "
            "{:.3f} with a model that slows down midway",
            *(ratio("choice_on_ray", f"auto_over_best_{name}") for name in on_ray),
        ),
        sentence(
            PAGE,
            "Over `fifo` it takes {:.3f} to {:.3f} times",
            min(ratio("choice_on_ray", f"auto_over_fifo_{name}") for name in on_ray),
            ratio("choice_on_ray", "auto_over_fifo"),
        ),
        sentence(
            PAGE,
            "{:.2f} ms at 1000 slots and {:.2f} ms at 10 000 (`fifo`), {:.2f} and {:.2f} (`hop`), "
            "{:.2f} and {:.2f} (`elastic`), {:.2f} and {:.2f} (`pack`",
            *(
                row("scale", part="slots", policy=policy, slots=count)["ms"]
                for policy in ("fifo", "hop", "elastic", "pack")
                for count in (1000, 10_000)
            ),
        ),
        sentence(
            PAGE,
            "`pack` takes {:.2f} ms a trial for like trials, {:.2f} for unlike ones",
            row("scale", policy="pack, like", trials=10_000)["ms"],
            ratio("scale", "pack_ms_a_trial"),
        ),
        sentence(
            PAGE,
            "takes {:.2f} % of a run in units of one second, {:.2f} % in units of ten",
            100 * ratio("scale", "deciding_share_1_s"),
            100 * ratio("scale", "deciding_share_10_s"),
        ),
        sentence(
            PAGE,
            "opens in {:.1f} s; with its 100 000 trials `status` takes {:.1f} s and `report` "
            "{:.1f} s for {:.1f} MB",
            ratio("scale", "open_million_lines_s"),
            ratio("scale", "status_100000_trials_s"),
            ratio("scale", "report_100000_trials_s"),
            ratio("scale", "report_100000_trials_mb"),
        ),
        sentence(
            PAGE,
            "{:.0f} % with the links, a factor of {:.2f} to {:.1f} without; measured alone only, "
            "{:.0f} % with them",
            100 * ratio("wide-curve", "curve_error"),
            1 + min(each["without"] for each in wider),
            1 + ratio("wide-curve", "curve_error_without"),
            100 * ratio("wide-curve", "curve_error_alone"),
        ),
        sentence(
            PAGE,
            "DDP makes {:.2f}, {:.2f}, {:.2f} and {:.2f} times Shoal's samples/s",
            *(row("wide", width=each)["ddp_over_shoal"] for each in (1, 2, 4, 8)),
        ),
        sentence(
            PAGE,
            "rounds differ from {:.2f} to {:.2f} and",
            *(row("wide", width=2)[end] for end in ("least", "most")),
        ),
        sentence(
            PAGE,
            "accuracy {:.4f} at width 1, {:.4f} at 1 -> 2 -> 4 with a fixed batch, {:.4f} with a "
            "batch per slot; at batch 32 two cores save no time: {:.1f} s at 1 -> 2 -> 2, "
            "{:.1f} s at width 1",
            alone["accuracy"],
            row("rescaled", batch="global", slots="1->2->4")["accuracy"],
            row("rescaled", batch="per slot", slots="1->2->4")["accuracy"],
            row("rescaled", batch="global", slots="1->2->2")["training_s"],
            alone["training_s"],
        ),
        sentence(
            PAGE,
            "mean completion {:.1f} s (doubling), {:.1f} s (equal shares), {:.1f}, {:.1f} and "
            "{:.1f} s (1, 2, 4 slots each); within {:.1f} % of the simulation",
            *(mean[name] for name in ("doubling", "equi", "fixed 1", "fixed 2", "fixed 4")),
            100 * ratio("arrivals", "furthest_from_simulation"),
        ),
    ]


def harvested() -> list[Sentence]:
    waits = "main job starts after s"
    return [
        sentence(
            PAGE,
            "{:.3f} of what dedicated slots make; the simulator said {:.3f}",
            ratio("harvest", "harvest_u"),
            ratio("harvest", "predicted_u"),
        ),
        sentence(
            PAGE,
            "A pilot is gone {:.2f} s after SIGTERM. In a Slurm of four nodes on the same machine, "
            "a job of all nodes starts {:.2f} s after it was submitted, and {:.2f} s if pilots",
            ratio("harvest", "pilot_leaves_s"),
            row("harvest", way="dedicated")[waits],
            row("harvest", way="harvested")[waits],
        ),
    ]


def thousands() -> Sentence:
    shoal = row("many", way="shoal", trials=10_000)
    tune = row("many", way="tune", trials=1_000)
    return sentence(
        PAGE,
        "{:.1f} ms a trial with 10 000 trials, {:.2f} times as long as with 1000; {:.2f} times a "
        "plain loop that saves its weights, {:.2f} times one that keeps nothing. Optuna takes "
        "{:.2f} of that time around the plain loop, {:.2f} with its journal in a file; Ray Tune "
        "{:.0f} ms with 1000 trials. `status` takes {:.1f} s, `report` {:.1f} s for {:.1f} MB, "
        "`resume` {:.1f} s to the first step",
        shoal["ms_a_trial"],
        ratio("many", "growth"),
        ratio("many", "many_over_loop_10000"),
        ratio("many", "many_over_bare_loop_10000"),
        ratio("many", "optuna_over_shoal_10000"),
        ratio("many", "optuna_journal_over_shoal_10000"),
        tune["ms_a_trial"],
        shoal["status_s"],
        shoal["report_s"],
        shoal["report_MB"],
        shoal["resume_s"],
    )


def alone() -> Sentence:
    nets = [row("step", net=name) for name in ("MLP", "CNN", "transformer")]
    ways = ("plain", "plain_fused", "lightning")
    return sentence(
        PAGE,
        "in times of Shoal's step, a plain loop's takes {:.2f}, {:.2f} and {:.2f}, "
        "with Adam's fused kernel {:.2f}, {:.2f} and {:.2f}, "
        "Lightning's {:.2f}, {:.2f} and {:.2f}; a training of one step takes "
        "{:.1f}, {:.1f} and {:.1f} ms with its checkpoint and journal, "
        "a plain loop's {:.1f}, {:.1f} and {:.1f} ms",
        *(net[f"{way}_over_shoal"] for way in ways for net in nets),
        *(net[f"{way}_first_ms"] for way in ("shoal", "plain") for net in nets),
    )


def feeding() -> Sentence:
    kinds = ("images", "arrow", "tar")
    out = [rows("feed", format=kind, **{"out of core": True}) for kind in kinds]
    return sentence(
        PAGE,
        "one model: {:.1f}, {:.1f} and {:.1f} times the loader's samples a second with 0, 1 and 2 "
        "workers; four models: {:.1f}, {:.1f} and {:.1f} times; data four times the memory for it: "
        "{:.2f} times from JPEG files, {:.2f} from Arrow, {:.2f} from tar files, where Shoal's "
        "processes hold {:.0f}, {:.0f} and {:.0f} MB at most, the loader's {:.0f}, {:.0f} and "
        "{:.0f}",
        *(ratio("feed", f"feed_over_dataloader_{n}_workers") for n in range(3)),
        *(ratio("feed", f"four_models_over_four_loaders_{n}_workers") for n in range(3)),
        *(ratio("feed", f"out_of_core_over_dataloader_{kind}") for kind in kinds),
        *(one["peak, MB"] for side in (0, 1) for one in (each[side] for each in out)),
    )


def grid() -> list[Sentence]:
    labels = {
        "tune_default": "Ray Tune as it comes (1 CPU a trial, 2 CPUs)",
        "tune_reuse": "Ray Tune with `reuse_actors=True`",
        "loop": "a plain sequential loop",
        "local": "Shoal, `local`",
        "local_fifo": 'Shoal, `local`, without packs (`policy="fifo"`)',
        "ray2": "Shoal, `ray` with 2 slots",
        "loop_narrow": "a plain loop, widths up to 128",
        "local_narrow": "Shoal, `local`, widths up to 128",
    }
    found = []
    for name, label in labels.items():
        one = row("tune_grid", variant=name)
        figures = (one["wall_s"], one["training_s"], *one["walls_s"], one["best_accuracy"])
        text = f"| {label} | {{:.1f}} | {{:.1f}} | {{:.1f}}, {{:.1f}}, {{:.1f}} | {{:.3f}} |"
        found.append(sentence(PAGE, text, *figures))
    return [
        *found,
        sentence(
            PAGE,
            "As multiples of Shoal's time on one slot, Ray Tune takes {:.1f} and {:.1f}, the loop "
            "{:.2f}. Of training alone on the narrow half, where models fuse, the loop takes "
            "{:.1f} times as long. Without packs Shoal takes {:.2f} times as long",
            ratio("tune_grid", "tune_default_over_local"),
            ratio("tune_grid", "tune_reuse_over_local"),
            ratio("tune_grid", "loop_over_local"),
            ratio("tune_grid", "loop_over_local_training_narrow"),
            ratio("tune_grid", "local_fifo_over_local"),
        ),
    ]


def stream() -> list[Sentence]:
    labels = {
        "per-trial": "per-trial pipelines: 8 slots, `feeders=0`",
        "feeders": "8 slots, `feeders=1`",
        "pack": "one slot with a pack of 8, interleaved",
        "tensorsocket": "TensorSocket 0.0.5, a producer and 8 consumers",
    }
    found = []
    for name, label in labels.items():
        one = row("shared_stream", way=name)
        preparing = one.get("feeders, CPU s") or one["preparing, CPU s"]
        figures = (one["samples/s"], one["samples/CPU s"], preparing, one["peak, MB"])
        text = f"| {label} | {{:.0f}} | {{:.0f}} | {{:.1f}} | {{:.0f}} |"
        found.append(sentence(PAGE, text, *figures))
    ratios = benchmark("shared_stream")["ratios"]
    speed_ups = (
        "feeders_speed_up",
        "pack_speed_up",
        "feeders_over_bound",
        "pack_over_bound",
        "feeders_cpu_over_bound",
        "pack_cpu_over_bound",
        "feeders_preparing_saved",
    )
    return [
        *found,
        sentence(
            PAGE,
            "That takes {:.2f} ms of the processor for a sample; a small convolutional net trains "
            "on it in {:.2f} ms. Preparing once instead of eight times would, if sharing cost "
            "nothing, make eight models {:.2f} times as fast",
            *(ratios[key] for key in ("prepare_ms", "train_ms", "bound")),
        ),
        sentence(
            PAGE,
            "Feeders are {:.2f} times as fast as per-trial pipelines, the pack {:.2f} times. Over "
            "the bound that is {:.2f} and {:.2f} by the clock, {:.2f} and {:.2f} by processor "
            "seconds. Feeders prepared {:.1f} times as cheaply and held {:.0f} MB of chunks.",
            *(ratios[key] for key in speed_ups),
            row("shared_stream", way="feeders")["held, MB"],
        ),
    ]


def changes_of_width() -> list[Sentence]:
    def seconds(name: str) -> list[float]:
        return [each["seconds"] for each in rows("rescale", **{"with": name})]

    return [
        sentence(PAGE, "| Shoal | {:.2f} | {:.2f} | {:.2f} | {:.2f} |", *seconds("shoal")),
        sentence(PAGE, "| torchrun, elastic | {:.1f} | {:.1f} | {:.1f} | |", *seconds("torchrun")),
        sentence(
            PAGE,
            "| Ray Train, stopped and restored | {:.1f} | {:.1f} | {:.1f} | |",
            *seconds("ray train"),
        ),
        sentence(
            PAGE,
            "a restart takes {:.0f} times (torchrun) and {:.0f} times (Ray Train) as long",
            ratio("rescale", "torchrun_over_shoal"),
            ratio("rescale", "ray_train_over_shoal"),
        ),
    ]


def ensemble() -> list[Sentence]:
    labels = {
        "random": "a slot for each, the next when one is free | {:.1f} s | "
        "{:.1f} s | {:.0f} % | {:.3f}",
        "rounds": "rounds of four (homogeneous, SC'18) | {:.1f} s | {:.1f} s | {:.0f} % | {:.3f}",
        "flotilla local": "FLEET's local flotillas | {:.1f} s | {:.1f} s | {:.0f} % | {:.2f}",
        "flotilla global": "FLEET's global flotilla | {:.1f} s | {:.1f} s | {:.0f} % | {:.2f}",
        "waterfill": "water-fill (ours) | {:.1f} s | {:.1f} s | {:.1f} % | {:.2f}",
    }
    found = []
    for name, label in labels.items():
        one = row("flotilla", way=name)
        whole = one["makespan_s"]
        waits = 100 * one["waiting_per_slot_s"] / whole
        figures = (whole, one["mean_completion_s"], waits, 100 * one["deciding_share"])
        found.append(sentence(PAGE, f"| {label} % |", *figures))
    decisions = [deciding_ms(each) for each in benchmark("flotilla")["rows"]]
    return [
        *found,
        sentence(
            PAGE,
            "The global flotilla is {:.2f} times as fast as rounds ({:.2f} to {:.2f} in the "
            "rounds; goal: 1.5; the paper: 1.23 to 1.97) and {:.2f} times as fast as a slot for "
            "each; water-fill is {:.2f} times as fast as a slot for each. A decision took between "
            "{:.2f} and {:.2f} milliseconds",
            ratio("flotilla", "rounds_over_flotilla"),
            *benchmark("flotilla")["ratios"]["rounds_over_flotilla_spread"],
            ratio("flotilla", "random_over_flotilla_global"),
            ratio("flotilla", "random_over_waterfill"),
            min(decisions),
            max(decisions),
        ),
        sentence(
            PAGE,
            "Water-fill is {:.2f} times as fast as the best of the others ({:.2f} to {:.2f} in the "
            "rounds; goal: 1.15). No schedule "
            "with one model at a time on a slot could be more than {:.2f} times as fast: models "
            "that each take as long as alone on one slot, on four slots that never wait, need "
            "{:.1f} s. Water-fill takes {:.2f} times that bound",
            ratio("flotilla", "best_other_over_waterfill"),
            *benchmark("flotilla")["ratios"]["best_other_over_waterfill_spread"],
            ratio("flotilla", "best_other_over_bound"),
            ratio("flotilla", "bound_s"),
            ratio("flotilla", "waterfill_over_bound"),
        ),
    ]


def nets() -> list[Sentence]:
    """The ensemble of real nets, of `flotilla.py --nets`."""

    def seconds(way: str) -> float:
        return float(row("flotilla-nets", way=way)["makespan_s"])

    def of(key: str) -> float:
        return float(ratio("flotilla-nets", key))

    lines = [
        sentence(
            PAGE,
            f"| {label} | {{:.1f}} s | {{:.1f}} s | {{:.2f}} |",
            seconds(f"{way}, own"),
            seconds(f"{way}, shared"),
            of(sharing),
        )
        for label, way, sharing in (
            ("a slot for each", "random", "sharing_at_random"),
            ("FLEET's global flotilla", "flotilla", "sharing_in_flotillas"),
        )
    ]
    return [
        *lines,
        sentence(PAGE, "| water-fill | | {:.1f} s | |", seconds("waterfill, shared")),
        sentence(PAGE, "sharing by four slots would gain {:.2f}\ntimes", of("sharing_bound")),
        sentence(
            PAGE,
            "the flotilla takes {:.2f} times as long as a slot for each with own preprocessors, "
            "and is {:.2f} times as fast shared; water-fill is {:.2f} times as fast as the "
            "flotilla",
            1 / of("widths_own"),
            of("widths_shared"),
            of("waterfill_over_flotilla"),
        ),
    ]


def few_trials() -> list[Sentence]:
    """What `hybrid` takes of `hop`'s time where speeds are learnt, in the mean and at worst."""

    def of(load: str) -> float:
        return float(row("hybrid", load=load, speeds="learnt")["mean"])

    return [
        sentence(
            "docs/policy.md",
            "few equal trials take {:.2f} of the time of `hop` in the mean, Hyperband {:.2f} with "
            "one bracket after another and {:.2f} with all at once; the worst draw takes {:.2f}",
            of("equal"),
            of("hyperband, brackets in turn"),
            of("hyperband"),
            ratio("hybrid", "hybrid_over_hop_worst"),
        )
    ]


def deciding_ms(one: Row) -> float:
    """Milliseconds of a decision of `flotilla.py`."""
    return float(1e3 * one["deciding_share"] * one["makespan_s"] / one["decisions"])


def hyperband() -> list[Sentence]:
    labels = {
        "batch_size": "Pack's batch-size grouping",
        "random": "Pack's random grouping",
        "nearest": "Pack's kNN grouping",
        "ours": "ours, across brackets, fused",
    }
    found = []
    for name, label in labels.items():
        one = row("hyperband", variant=name)
        figures = (one["training_s"], one["epochs"], one["speedup"], one["lanes"])
        found.append(
            sentence(PAGE, f"| {label} | {{:.1f}} | {{}} | {{:.2f}}x | {{:.1f}} |", *figures)
        )
    unpacked = row("hyperband", variant="unpacked")
    tune = row("hyperband", variant="tune")
    return [
        *found,
        sentence(
            PAGE,
            "| unpacked, and again at the end | {:.1f}, {:.1f} | {} | | 1 |",
            unpacked["training_s"],
            ratio("hyperband", "unpacked_again_s"),
            unpacked["epochs"],
        ),
        sentence(
            PAGE,
            "| Ray Tune's HyperBand, actors reused | {:.1f} | {} | {:.2f}x | |",
            *(tune[key] for key in ("training_s", "epochs", "speedup")),
        ),
        sentence(
            PAGE,
            "Ray Tune takes {:.2f} times as long as ours",
            ratio("hyperband", "tune_over_ours"),
        ),
        *rates(),
    ]


def rounding() -> list[Sentence]:
    """Fused searches and searches with weights a little larger, in both precisions."""

    def of(key: str, which: str) -> float:
        return ratio("hyperband_rounding", f"{key}_{which}")

    ways = ("fused_single", "nudged_single")
    double = ("fused_double", "nudged_double")
    return [
        sentence(
            PAGE,
            "In single precision {} of {} scores differ between fused and alone, by up to {:.1f} "
            "points;\nwith weights so changed {} of {} differ, by up to {:.1f} points.",
            *(of(k, way) for way in ways for k in ("unequal", "scores", "score_points")),
        ),
        sentence(
            PAGE,
            "In double precision it is {} and {} of {}, by up to {:.1f} and {:.1f}\npoints",
            *(of("unequal", way) for way in double),
            of("scores", double[0]),
            *(of("score_points", way) for way in double),
        ),
    ]


def rates() -> list[Sentence]:
    """Hyperband over rates and seeds of one network."""
    told = "hyperband-rates"
    times = [row(told, variant=name)["training_s"] for name in ("unpacked", "nearest", "ours")]
    return [
        sentence(
            PAGE,
            "configurations take {:.1f} s unpacked\n({:.1f} s when run again at the end), "
            "{:.1f} s with the kNN grouping and {:.1f} s fused by `pack`: {:.2f} times as fast",
            times[0],
            ratio(told, "unpacked_again_s"),
            *times[1:],
            ratio(told, "unpacked_over_ours"),
        ),
        sentence(
            PAGE, "by up to {:.1f} points of accuracy", ratio(told, "fused_promotions_apart_points")
        ),
        *rounding(),
    ]


def searches() -> list[Sentence]:
    labels = {
        "asha": "ASHA, R = 9, eta = 3",
        "hyperband": "Hyperband, R = 25, eta = 3",
        "tpe": "TPE, 32 configurations",
    }
    cells = "{:.1f} | {:.3f} | {:.4f} |"
    found = []
    for search, label in labels.items():
        lines = []
        figures = []
        for way in ("copies", "hop", "packed hop"):
            one = row("search_on_hop", search=search, way=way)
            figures += [one["training_s"], one["s_per_epoch"], one["best"]]
            lines.append(f"| {way} | {cells} {reached(one, epochs=way == 'copies')} |")
        found.append(sentence(PAGE, f"| {label} " + " | ".join(lines), *figures))
    costs = [
        value
        for key, value in benchmark("search_on_hop")["ratios"].items()
        if key.endswith("hop_over_copies_s_per_epoch")
    ]
    text = "Hopping costs {:.1f} to {:.1f} times the time of an epoch here"
    return [*found, sentence(PAGE, text, min(costs), max(costs))]


def reached(one: Row, epochs: bool) -> str:
    """How many configurations reached each rung: over the rounds, the fewest and the most."""
    words = []
    for rung in one["trials_per_rung"][0]:
        counts = sorted({each[rung] for each in one["trials_per_rung"]})
        span = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        words.append(f"{span} at {rung}" if epochs else span)
    return ", ".join(words)


def divided() -> list[Rule]:
    """Model selection on divided data: its tables, and what is said below them."""
    of = benchmark("model_selection")["ratios"]
    times = [of[f"hop_over_best_time_{slots}"] for slots in (4, 2)]
    apart = [abs(of[f"hop_minus_copies_accuracy_{slots}"]) for slots in (4, 2)]
    formula = [of[f"hop_bytes_over_formula_{slots}"] for slots in (4, 2)]
    return [
        Block(PAGE, "model-selection", selection_markdown()),
        sentence(
            PAGE,
            "On four slots hopping takes {:.2f} times as long as the fastest way, on two {:.2f} "
            "times. Whole copies store {:.1f} times as much there",
            *times,
            of["copies_over_hop_storage_4"],
        ),
        sentence(
            PAGE,
            "DistributedDataParallel sends {:.1f} times as many bytes",
            of["ddp_over_hop_bytes_4"],
        ),
        sentence(
            PAGE, "accuracies differ by {:.3f} in the mean (four slots) and by {:.3f} (two)", *apart
        ),
        sentence(
            PAGE,
            "Here it is {:.2f} of the first term, which the paper calls the minimum",
            of["hop_bytes_over_least_4"],
        ),
        sentence(
            PAGE, "Of the paper's whole sum that is {:.2f} on four slots and {:.2f}", *formula
        ),
    ]


def packing() -> list[Rule]:
    """The page of tables, and what is said above them."""

    def most(net: str, batch: int) -> float:
        gains = [each["sequential_over_chosen"] for each in rows("packing", net=net, batch=batch)]
        return float(max(gain for gain in gains if gain is not None))

    larger = ("MobileNet-like", "ResNet-like")
    losses = [
        each["fused_over_sequential"]
        for each in benchmark("packing")["rows"]
        if each["net"] in larger and each["fused_over_sequential"]
    ]
    page = "docs/packing.md"
    pairs = benchmark("packing-pairs")["rows"]
    both = [r for r in pairs if (r["data"], r["preprocessing"]) == ("same", "yes")]
    rest = [each for each in pairs if each not in both]
    small = [100 * r["impv"] for r in both if r["pair"] == "MLP-3 x64 + MLP-3 x64"]
    large = [100 * r["impv"] for r in both if r["pair"] != "MLP-3 x64 + MLP-3 x64"]
    told = [each["pack?"] for each in rest]
    sure = [abs(100 * each["impv"]) for each in rest if each["pack?"] != "either"]
    return [
        sentence(
            page,
            "All {} pairs that share their data and\n   prepare it in each pass gained: small "
            "MLPs {:.0f} to {:.0f} %, the others, whose steps are longer, {:.0f} to {:.0f} %. Of "
            "the {} other pairs {}\n   gained and {} lost for sure, each by {:.0f} % at most",
            sum(each["pack?"] == "yes" for each in both),
            *(min(small), max(small), min(large), max(large)),
            *(len(rest), told.count("yes"), told.count("no"), max(sure)),
        ),
        *(
            Block(page, f"packing-{name}", markdown())
            for name, markdown in packing_page.TABLES.items()
        ),
        *(
            Block(f"docs/assets/packing-{name}.svg", f"packing-{name}", picture())
            for name, picture in packing_pictures.PICTURES.items()
        ),
        sentence(
            page,
            "at a batch of 32 the choice is up to {:.1f} times as fast as the sequential way for "
            "the CNN, {:.1f} times for the ResNet-like and {:.1f} times for the MobileNet-like "
            "net; at 64 up to {:.1f}, {:.1f} and {:.1f} times",
            *(most(net, 32) for net in ("CNN", "ResNet-like", "MobileNet-like")),
            *(most(net, 64) for net in ("CNN", "ResNet-like", "MobileNet-like")),
        ),
        sentence(
            page, "fusing all of the two larger nets takes up to {:.1f} times as long", max(losses)
        ),
    ]


RULES: list[Rule] = [
    *readme(),
    *compared(),
    *first_table(),
    *grid(),
    *stream(),
    *changes_of_width(),
    *ensemble(),
    *nets(),
    *few_trials(),
    *hyperband(),
    *searches(),
    *divided(),
    *packing(),
    *choices(),
    Block("docs/reference/options.md", "options", options_table()),
]
