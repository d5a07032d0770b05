"""Where papers/*/README.md have figures of papers/results. See `figures.py`."""

from __future__ import annotations

from figure_rules import Rule, Sentence, sentence
from figure_tables import Tables
from results import Row, benchmark, goal, paper, paper_row


def percent(part: float) -> float:
    return 100.0 * part


def more(ratio: float) -> float:
    """How much larger than one, in per cent."""
    return 100.0 * (ratio - 1.0)


def less(ratio: float) -> float:
    """How much smaller than one, in per cent."""
    return 100.0 * (1.0 - ratio)


def select(name: str, beginning: str) -> list[Row]:
    """All rows of a paper that begin so."""
    return [row for row in paper(name)["rows"] if row["what"].startswith(beginning)]


# -- BFTrainer ---------------------------------------------------------------------------------


def bftrainer() -> list[Sentence]:
    page = "papers/bftrainer/README.md"
    at_120 = paper_row("bftrainer", "Fig. 9, 120, authors'")["ours"]
    at_once = paper_row("bftrainer", "Fig. 9, 120, completion events")["ours"]
    heuristic = paper_row("bftrainer", "Fig. 9, heuristic")["ours"]
    mean = paper_row("bftrainer", "Fig. 10, mean")
    alex = paper_row("bftrainer", "Fig. 15, AlexNet")["ours"]
    dense = paper_row("bftrainer", "Fig. 15, DenseNet")
    log = [paper_row("bftrainer", f"log, {name}")["ours"] for name in LOG]
    first_week = paper_row("bftrainer", "first week, short_fragments")["ours"]
    return [
        sentence(
            page,
            "that alone is worth {:.1f} points of U at a forward time of 120 s",
            percent(at_once - at_120),
        ),
        sentence(
            page,
            "The log: {:_} events, {:_} joins, {:_} leaves and {:_} node-hours, all as printed; "
            "{:.0f} nodes, {:.1f} %.",
            *log[:5],
            percent(log[5]),
        ),
        sentence(page, "is the first week ({:.1f} %)", percent(first_week)),
        sentence(
            page,
            "The heuristic's U is {:.1f} % (paper: 75). The MILP's optimum saturates at 120 s, as "
            "printed, at {:.1f} % (paper: 80); the best bin of six hours is {:.1f} %",
            percent(heuristic),
            percent(at_120),
            percent(paper_row("bftrainer", "Fig. 10, most")["ours"]),
        ),
        sentence(
            page,
            "Figure 15 from {:.1f} % (AlexNet; paper 75) to {:.1f} % (DenseNet; paper 83)",
            percent(alex),
            percent(dense["ours"]),
        ),
        sentence(
            page,
            "U of the MILP is {:.1f} points above the paper's, its mean over bins of six hours "
            "{:.1f} points, and DenseNet's in Figure 15 {:.1f} points.",
            percent(at_120 - 0.80),
            percent(mean["ours"] - mean["paper"]),
            percent(dense["ours"] - dense["paper"]),
        ),
        sentence(
            page,
            "35 trials in parallel: U of {:.1f} % and more on both weeks",
            percent(goal("bftrainer", "E-4")),
        ),
        sentence(
            page,
            "the same U on the second week as the paper's 120 s, within {:.1f} points",
            percent(goal("bftrainer", "E-5")),
        ),
        allocator(page),
        *rescaling(page),
    ]


def rescaling(page: str) -> list[Sentence]:
    """Figures 7, 10, 13 and 14, and event by event."""

    def ours(what: str) -> float:
        return float(paper_row("bftrainer", what)["ours"])

    events = [percent(ours(f"event by event, {name}")) for name in ("worse", "twice", "five times")]
    parallel = "efficiency, {}, 5 to 35 in parallel"
    return [
        sentence(
            page,
            "the heuristic's is {:.1f} times that of the MILP at a forward time of 10 s",
            goal("bftrainer", "E-2 rescaling"),
        ),
        sentence(
            page,
            "the heuristic between {:.1f} % of the events (paper: 6.9), twice as many in {:.1f} % "
            "(11), five times in {:.1f} % (3), {:.1f} times as many on average (2.9), and "
            "{:.0f} % more",
            *events,
            ours("event by event, mean"),
            percent(ours("Fig. 10, MILP over heuristic, best bin")),
        ),
        sentence(
            page,
            "run times grow by {:.0f} % (paper: 442), {:.1f} % and {:.1f} % of the node-hours",
            percent(ours(f"Fig. 14 (b), {parallel.format('longer run times')}")),
            percent(ours("Fig. 14, efficiency, 5 in parallel, unoccupied")),
            percent(ours("Fig. 14, efficiency, 10 in parallel, unoccupied")),
        ),
        sentence(
            page,
            "node-hours fall by {:.0f} % (paper: 28)",
            percent(ours(f"Fig. 14 (a), {parallel.format('node-hours saved')}")),
        ),
        sentence(
            page,
            "within {:.0f} s on our 1024 nodes, and within {:.0f} s on the whole machine",
            ours("Fig. 7 (a), 1024 nodes, nine of ten within, s"),
            ours("Fig. 7 (a), whole machine, nine of ten within, s"),
        ),
        sentence(
            page,
            "1.03 million samples an event, ours {:.2f}.",
            1e-6 * ours("Fig. 7 (b), heuristic, samples an event"),
        ),
    ]


LOG = ("events", "join_events", "leave_events", "idle_node_hours", "equivalent_nodes", "idle_ratio")


def allocator(page: str) -> Sentence:
    """`benchmarks/elastic.py`, against two programs."""
    sizes = benchmark("elastic")["rows"]
    counts = [row["count_milp_ms"] / row["shoal_ms"] for row in sizes]
    nodes = [1e3 * row["node_milp_s"] / row["shoal_ms"] for row in sizes if row["node_milp_s"]]
    return sentence(
        page,
        "Over five sizes `benchmarks/elastic.py` has it {:.0f} to {:.0f} times as fast as HiGHS on "
        "a program over counts, and over the three sizes at which the paper's program over nodes "
        "was tried {:.0f} to {:.0f} times",
        min(counts),
        max(counts),
        min(nodes),
        max(nodes),
    )


# -- Capes -------------------------------------------------------------------------------------

LOADS = ("Extreme", "Moderate", "None")


def capes() -> list[Sentence]:
    page = "papers/capes/README.md"
    cells = [row for row in select("capes", "Table 3, ") if "note" not in row]
    worst = max(abs(row["lottery/paper"] - 1) for row in cells)
    sized = [row["ratio"] for row in paper("capes")["rows"] if "sizes of CV 1" in row["what"]]
    equi = paper_row("capes", "equi")
    return [
        sentence(
            page,
            "come within {:.0f} % each and {:.1f} % rms of Table 3",
            percent(worst),
            percent(goal("capes", "B-1")),
        ),
        sentence(
            page,
            "(Eight under extreme contention {:.1f} h instead of 22.8 h)",
            paper_row("capes", "Table 3, Eight, Extreme")["fifo"],
        ),
        sentence(
            page,
            "{:.1f} % over the goal's six seeds, {:.1f} % over 24.",
            less(equi["None"] / paper_row("capes", "doubling")["None"]),
            less(paper_row("capes", "equi / doubling, 24 seeds")["None"]),
        ),
        sentence(
            page,
            "the rules that look at what is left are {:.0f} to {:.0f} % below doubling",
            less(max(sized)),
            less(min(sized)),
        ),
        sentence(
            page,
            "mean is {:.2f} times as long as under equal shares with right beliefs",
            paper_row("capes", "equi, speeds believed off")["None"] / equi["None"],
        ),
        sentence(page, "the paper's gain is {:.2f}x at most", most_gain_over_fixed()),
        sentence(
            page,
            "off by {:.0f} % at most",
            percent(paper_row("capes", "eq. 5 on Table 2")["worst"]),
        ),
        *capes_peaks(page),
        *capes_exploring(page),
    ]


def capes_exploring(page: str) -> list[Sentence]:
    """The readings of the exploratory strategy, and what the load's work comes to."""
    extreme, moderate = (paper_row("capes", f"Table 3, Exploratory, {load}") for load in LOADS[:2])
    held = paper_row("capes", "Exploratory, holds 8 slots, drawn wide")["Moderate"]
    hours = {
        name: paper_row("capes", f"all work at Extreme, {name}")["hours"]
        for name in ("eight", "once, then one")
    }
    return [
        sentence(
            page,
            "{:.1f} h under extreme contention, where the paper prints {:.2f} h",
            *(extreme["lottery"], extreme["paper"]),
        ),
        sentence(
            page, "all three cells come within {:.0f} % (goal B-4)", percent(goal("capes", "B-4"))
        ),
        sentence(page, "the moderate load takes {:.0f} % too long", more(held / moderate["paper"])),
        sentence(
            page,
            "{:.1f} h where each explores once and then runs on one slot, and {:.1f} h on 8 slots "
            "each",
            *(hours["once, then one"], hours["eight"]),
        ),
    ]


def capes_peaks(page: str) -> list[Sentence]:
    """The most trials at once."""
    extreme, moderate, none = (paper_row("capes", f"peak of trials, {load}") for load in LOADS)
    return [
        sentence(
            page,
            "{} to {} under extreme contention (paper: {}), {} to {} under moderate ({}). Under "
            "the lottery extreme contention peaks at {} to {}",
            *(*extreme["fifo"], extreme["paper"]),
            *(*moderate["fifo"], moderate["paper"]),
            *extreme["lottery"],
        ),
        sentence(
            page,
            "six draws give {} to {} simultaneous trials, the paper prints {}",
            *(*none["fifo"], none["paper"]),
        ),
    ]


def most_gain_over_fixed() -> float:
    """Precompute against the best fixed width, first come first served, over the loads."""
    gains = []
    for load in LOADS:
        fixed = [
            paper_row("capes", f"Table 3, {name}, {load}")["fifo"]
            for name in ("Eight", "Four", "Two", "One")
        ]
        gains.append(min(fixed) / paper_row("capes", f"Table 3, Precompute, {load}")["fifo"])
    return max(gains)


# -- Cerebro -----------------------------------------------------------------------------------


def cerebro() -> list[Sentence]:
    page = "papers/cerebro/README.md"
    many = [row["random"] for row in select("cerebro", "Figure 6") if " 256 trials" in row["what"]]
    alike = paper_row("cerebro", "Figure 6, homogeneous, 16 trials, 16 slots")
    unlike = paper_row("cerebro", "Figure 6, heterogeneous, 16 trials, 8 slots")
    copies = [row["random"] for name in ("2", "3") for row in select("cerebro", f"{name} copies")]
    planned = [row[rule] for row in select("cerebro", "noise") for rule in ("rotation", "quick4")]
    return [
        sentence(page, "(256: within {:.1f} % on average)", more(max(many))),
        sentence(page, "(16 on 8: {:.0f} % above the bound)", more(unlike["vector rearrangement"])),
        sentence(
            page,
            "Hyperband takes {:.2f} times as long hopping as task-parallel (paper: 1.03)",
            paper_row("cerebro", "Figure 19")["ours"],
        ),
        sentence(
            page,
            "{:.1f} % above the bound on 16 like slots, {:.1f} % at worst",
            more(alike["random"]),
            more(alike["random, worst"]),
        ),
        sentence(
            page,
            "groups win {:.1f}x at five configurations on eight slots",
            paper_row("cerebro", "Figure 17, 5 trials on 8 slots, communication 0.05")[
                "paper's rule / ours"
            ],
        ),
        sentence(page, "costs up to {:.0f} % then", more(max(planned))),
        sentence(
            page,
            "With replicas the randomized rule is {:.0f} to {:.0f} % above the bound",
            more(min(copies)),
            more(max(copies)),
        ),
        sentence(
            page, "make epochs of 64 trials or more {:.1f} times as short", goal("cerebro", "A-5")
        ),
    ]


# -- FLEET -------------------------------------------------------------------------------------


def fleet() -> list[Sentence]:
    page = "papers/fleet/README.md"
    totals = select("fleet", "Table 4")
    flotillas = [row["flotillas"] for row in totals]
    small = [row["ours/paper"] for row in totals[:2]]
    bad = paper_row("fleet", "speed-up, bad scaling, FLEET-G")
    return [
        sentence(
            page,
            "FLEET-G's eight totals within {:.0f} % (C-1), its number of flotillas ({:.0f} to "
            "{:.0f} against 20 to 44)",
            percent(goal("fleet", "C-1")),
            min(flotillas),
            max(flotillas),
        ),
        sentence(
            page,
            "since it is {:.0f} to {:.0f} % slower there than in Table 4",
            more(min(small)),
            more(max(small)),
        ),
        sentence(
            page,
            "where models scale badly FLEET-G falls to {:.2f} of the baseline",
            min(value for key, value in bad.items() if key != "what"),
        ),
    ]


# -- Pack --------------------------------------------------------------------------------------


def pack() -> list[Sentence]:
    page = "papers/pack/README.md"
    groupings = ("batch-size", "random", "kNN")
    mlp = [paper_row("pack", f"Table 4, MLP-3, {name}") for name in groupings]
    exact = [row["worst"] for row in select("pack", "12 trials")]
    filled = [
        row["ours"]
        for row in paper("pack")["rows"]
        if row["what"].endswith("refilled and brackets at once / kNN")
    ]
    networks = ("MLP-3", "MobileNet", "ResNet-50", "DenseNet-121")
    at_once = [brackets_at_once(name) for name in networks]
    pairs = benchmark("packing-pairs")["rows"]
    shared = [r for r in pairs if (r["data"], r["preprocessing"]) == ("same", "yes")]
    others = [each["pack?"] for each in pairs if each not in shared]
    four = benchmark("packing_four")["ratios"]
    switches = [value for key, value in four.items() if key.startswith("switch_")]
    return [
        sentence(
            page,
            "{} of {} such pairs gain, and of the {} others {} gain and {} lose",
            sum(each["pack?"] == "yes" for each in shared),
            *(len(shared), len(others), others.count("yes"), others.count("no")),
        ),
        sentence(page, "their tensors take {:.1f} GiB", four["gib_2_resnet50_80"]),
        sentence(page, "as much as training {:.0f} to {:.0f} images", min(switches), max(switches)),
        sentence(
            page,
            "MLP-3: {:.2f}, {:.2f} and {:.2f} against the paper's {:.2f}, {:.2f} and {:.2f}.",
            *(row["ours"] for row in mlp),
            *(row["paper"] for row in mlp),
        ),
        sentence(
            page,
            "MobileNet's kNN is {:.2f} times faster than the original in the paper, and {:.2f} "
            "times here, hardly more than random ({:.2f})",
            paper_row("pack", "Table 4, MobileNet, kNN")["paper"],
            paper_row("pack", "Table 4, MobileNet, kNN")["ours"],
            paper_row("pack", "Table 4, MobileNet, random")["ours"],
        ),
        sentence(page, "at most {:.1f} % from exact set partition at 12", more(max(exact))),
        sentence(
            page, "{:.2f} to {:.2f} times as fast as kNN rung by rung", min(filled), max(filled)
        ),
        sentence(
            page,
            "brackets at once without filling up win {:.1f} to {:.1f} % only",
            more(min(at_once)),
            more(max(at_once)),
        ),
    ]


def brackets_at_once(network: str) -> float:
    """What taking all brackets at once gains without filling packs up."""
    once = paper_row("pack", f"Table 4, {network}, contiguous, brackets at once")["ours"]
    apart = paper_row("pack", f"Table 4, {network}, contiguous")["ours"]
    return float(once / apart)


PAPERS = ("bftrainer", "capes", "cerebro", "fleet", "pack")
RULES: list[Rule] = [
    *(Tables(f"papers/{name}/README.md", name) for name in PAPERS),
    *bftrainer(),
    *capes(),
    *cerebro(),
    *fleet(),
    *pack(),
]
