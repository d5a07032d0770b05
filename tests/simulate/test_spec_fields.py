"""What a spec may say of slots, data, hops and packs; and what it may not."""

import pytest

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, solo
from shoal.core.trial import TrialId
from shoal.simulate import simulate
from shoal.simulate.fields import SpecError
from shoal.simulate.spec import load_spec

SLOTS = "[slots]\ncount = 4\n"
TRIALS = "[[trials]]\nsamples = 1000\n"
PROFILE = "[[profile]]\n"
G = [SlotId(f"g{i:04d}") for i in range(6)]


def write(tmp_path, text, name="spec.toml"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def loaded(tmp_path, text):
    return load_spec(write(tmp_path, text))


def profile(spec):
    return spec.profile.of({trial.id: trial for _, trial in spec.arrivals})


def test_groups_of_unlike_slots(tmp_path):
    text = (
        "[[slots]]\ncount = 3\nper_node = 2\nmemory = 8\n[[slots]]\ncount = "
        "3\nkind = 'old'\nspeed = [0.5, 1, 2]\nper_node = 3\n"
    )
    spec = loaded(tmp_path, text + TRIALS + PROFILE + "rates = [10, 18]\n")
    assert [(s.id, s.node, s.kind, s.memory) for s in spec.slots][2:4] == [
        (G[2], "n0001", "gpu", 8.0),
        (G[3], "n0002", "old", float("inf")),
    ]
    assert spec.profile.speeds == {G[3]: 0.5, G[5]: 2.0}
    trial = spec.arrivals[0][1].id
    rates = [
        profile(spec).rates(Gang((Lane(trial, slots),)))[trial]
        for slots in ((G[0],), (G[3],), (G[5],), (G[3], G[5]))
    ]
    assert rates == [10, 5, 20, 9]


def test_slower_slots_take_longer(tmp_path):
    text = "[[slots]]\ncount = 1\nspeed = 0.25\n" + TRIALS + PROFILE + "rates = [10]\n"
    data, _ = simulate([write(tmp_path, text)])
    assert data["specs"][0]["policies"]["fifo"]["makespan_s"] == pytest.approx(400.0)


def test_nodes_of_a_log_have_speeds(tmp_path):
    write(tmp_path, "node,start,end\na,0,\nb,0,900\n", "log.csv")
    text = "[log]\nfile = 'log.csv'\nspeeds = { a = 0.5 }\n" + TRIALS + PROFILE + "rates = [10]\n"
    data, _ = simulate([write(tmp_path, text)])
    assert data["specs"][0]["policies"]["fifo"]["makespan_s"] == pytest.approx(200.0)


def test_shards_as_large_as_slots_are_fast_even_out_a_pass(tmp_path):
    slots = "[[slots]]\ncount = 2\n[[slots]]\ncount = 2\nspeed = 0.5\n"
    rest = "[[trials]]\ncount = 4\nepochs = 2\n[[profile]]\nrates = [10]\n[policies.hop]\n"
    took = {}
    for how, data in {
        "even": "shards = 4",
        "weighed": "shard_weights = 'speeds'",
        "given": "shard_weights = [2, 2, 1, 1]",
    }.items():
        text = slots + f"[data]\nsamples = 600\nreplicas = 1\n{data}\n" + rest
        spec = loaded(tmp_path, text)
        assert sum(spec.shards.values()) == 600
        assert [set(s.shards) for s in spec.slots] == [{shard} for shard in spec.shards]
        took[how] = simulate([tmp_path / "spec.toml"])[0]["specs"][0]["policies"]["hop"][
            "makespan_s"
        ]
    # 4 trials of 2 epochs: 8 visits at each slot. Even: 150 samples at 5/s; weighed: 20 s
    # everywhere
    assert took == {
        "even": pytest.approx(240.0),
        "weighed": pytest.approx(160.0),
        "given": pytest.approx(160.0),
    }


def test_a_hop_costs_latency_and_the_states_way(tmp_path):
    text = (
        SLOTS
        + "[hop]\nlatency = 0.5\nbandwidth = 4.0\n"
        + TRIALS
        + PROFILE
        + "state = 3.0\nup = 7\n"
    )
    spec = loaded(tmp_path, text)
    trial = spec.arrivals[0][1].id
    one, two = solo(trial, G[0], 0), Gang((Lane(trial, tuple(G[:2])),))
    switch = profile(spec).switch
    assert [switch(None, one), switch(one, two), switch(two, one)] == [0.5 + 0.75, 7.0, 0.5 + 0.75]


PACK = """
[slots]
count = 1
memory = 4.0
[[trials]]
count = 8
samples = 64000
config = { batch_size = 64 }
[[profile]]
rates = [100]
memory = 0.5
packing = { share = 0.6, usual = 64, joint = 0.0, per_sample = 0.0078125 }
[policies.fifo]
[policies.pack]
"""


def test_packs_share_what_steps_have_in_common(tmp_path):
    figures = simulate([write(tmp_path, PACK)])[0]["specs"][0]["policies"]
    assert figures["fifo"]["makespan_s"] == pytest.approx(8 * 640.0)
    # four of 0.5 + 0.5 GiB fit; a step of four takes 0.6 + 4 * 0.4 of one; a step of each is tried
    together = 2 * 640.0 * (0.6 + 4 * 0.4)
    assert figures["pack"]["makespan_s"] == pytest.approx(together + 8 * 0.64)


def test_packs_in_seconds(tmp_path):
    seconds = (
        "{ compute = 1e-3, fixed = 0.02, moving = 2e-4, joint = 5e-3, repack = 3, usual = 32 }"
    )
    text = (
        SLOTS + "[[trials]]\ncount = 2\nsamples = 9\n[[trials]]\nsamples = 9\nconfig = "
        "{ batch_size = 8 }\n"
    )
    spec = loaded(tmp_path, text + PROFILE + f"packing = {seconds}\n")
    table, pair = (
        profile(spec),
        Gang((Lane(TrialId("a0000"), (G[0],)), Lane(TrialId("b0000"), (G[0],)))),
    )
    step = 0.02 + 2e-4 * 32 + 1e-3 * 40 + 2 * 5e-3
    assert table.rates(pair) == pytest.approx({"a0000": 32 / step, "b0000": 8 / step})
    assert table.curve(TrialId("a0000"), 1)[0] == pytest.approx(32 / (0.02 + 1.2e-3 * 32 + 5e-3))
    assert table.switch(solo(TrialId("a0000"), G[0], 0), pair) == 3.0


BAD = [  # text, key, rule
    ("count = 3\n" + TRIALS, "", "no field count"),
    ("title = 3\n" + SLOTS + TRIALS, "title", "a text; got 3"),
    ("hours = 0\n" + SLOTS + TRIALS, "hours", "a number > 0; got 0"),
    ("hours = nan\n" + SLOTS + TRIALS, "hours", "got nan"),
    ("seed = 1.5\n" + SLOTS + TRIALS, "seed", "a whole number >= 0; got 1.5"),
    ("checkpoint_every = -1\n" + SLOTS + TRIALS, "checkpoint_every", "a number >= 0; got -1"),
    ("slots = 4\n" + TRIALS, "slots", "tables, [[slots]]; got 4"),
    (SLOTS + "[log]\nfile = 'x'\n" + TRIALS, "", "give one of slots, log"),
    ("[slots]\ncount = true\n" + TRIALS, "[slots] count", "a whole number >= 1; got True"),
    ("[slots]\n" + TRIALS, "[slots] count", "it is missing"),
    ("[slots]\ncount = 2\nper_node = 0\n" + TRIALS, "[slots] per_node", ">= 1; got 0"),
    ("[slots]\ncount = 2\nmemory = 0\n" + TRIALS, "[slots] memory", "> 0; got 0"),
    ("[slots]\ncount = 2\nkind = 1\n" + TRIALS, "[slots] kind", "a text; got 1"),
    ("[slots]\ncount = 2\nspeed = -1\n" + TRIALS, "[slots] speed", "> 0; got -1"),
    (
        "[slots]\ncount = 2\nspeed = [1, 2, 3]\n" + TRIALS,
        "[slots] speed",
        "one for each of the 2 slots; got 3",
    ),
    (
        "[[slots]]\ncount = 2\n[[slots]]\ncount = 2\nspeed = [1, 0]\n" + TRIALS,
        "[[slots]] 2 speed",
        "> 0; got 0",
    ),
    ("[log]\n" + TRIALS, "[log] file", "it is missing"),
    ("[log]\nfile = 'x'\nsynthetic = {}\n" + TRIALS, "[log]", "give one of file, synthetic"),
    ("[log.synthetic]\nhours = 1\nidle = 2\n" + TRIALS, "[log.synthetic]", "0 < idle < 1"),
    ("[log.synthetic]\nhours = 0\n" + TRIALS, "[log.synthetic] hours", "> 0; got 0"),
    (
        "[log.synthetic]\nracks = 1\nhours = 1\n[log.speeds]\nzz = 1\n" + TRIALS,
        "[log] speeds",
        "the log has no node zz",
    ),
    (
        "[log]\nbegin = 1e9\n[log.synthetic]\nracks = 1\nhours = 1\n" + TRIALS,
        "[log] begin",
        "the log ends at 3600 s; got 1e+09",
    ),
    (SLOTS + "[data]\nsamples = 10\n" + TRIALS, "[data] shards", "it is missing"),
    (
        SLOTS + "[data]\nshards = 20\nsamples = 10\n" + TRIALS,
        "[data] samples",
        "cannot be divided into 20 shards",
    ),
    (
        SLOTS + "[data]\nshards = 2\nsamples = 10\nreplicas = 5\n" + TRIALS,
        "[data] replicas",
        "there are 4 at first; got 5",
    ),
    (
        SLOTS + "[data]\nshards = 3\nsamples = 10\nshard_weights = [1, 2]\n" + TRIALS,
        "[data] shard_weights",
        "of the 3 shards",
    ),
    (
        SLOTS + "[data]\nsamples = 10\nshard_weights = [1, 0]\n" + TRIALS,
        "[data] shard_weights",
        "> 0; got 0",
    ),
    (
        SLOTS + "[data]\nsamples = 10\nshard_weights = 'fast'\n" + TRIALS,
        "[data] shard_weights",
        "a list of numbers; got 'fast'",
    ),
    (SLOTS, "", "it needs trials, as [[trials]]"),
    (SLOTS + "[[trials]]\nsamples = 0\n", "[[trials]] samples", "> 0; got 0"),
    (SLOTS + "[[trials]]\nepochs = 2\n", "[[trials]] epochs", "it needs [data]"),
    (SLOTS + "[[trials]]\nepochs = 2\nsamples = 2\n", "[[trials]]", "give one of samples, epochs"),
    (SLOTS + TRIALS + "count = 0\n", "[[trials]] count", ">= 1; got 0"),
    (SLOTS + TRIALS + "widths = [2, 1]\n", "[[trials]] widths", "1 <= fewest <= most; got [2, 1]"),
    (SLOTS + TRIALS + "widths = [1, 2.5]\n", "[[trials]] widths", "got [1, 2.5]"),
    (
        SLOTS + TRIALS + "widths = [9, 9]\n",
        "[[trials]] widths",
        "needs 9 slots or more; there are 4",
    ),
    (SLOTS + TRIALS + "every = 1\npoisson = 1\n", "[[trials]]", "give one of every, poisson, at"),
    (
        SLOTS + TRIALS + "count = 3\nat = [1, 2]\n",
        "[[trials]] at",
        "a time for each of the 3 trials; got 2",
    ),
    (SLOTS + TRIALS + "at = [-1]\n", "[[trials]] at", ">= 0; got -1"),
    (SLOTS + TRIALS + "config = 3\n", "[[trials]] config", "must be a table"),
    (SLOTS + TRIALS + TRIALS + "poisson = 0\n", "[[trials]] 2 poisson", "> 0; got 0"),
    (SLOTS + TRIALS + PROFILE + "speed = 3\n", "[[profile]]", "no field speed"),
    (SLOTS + TRIALS + PROFILE + "rates = []\n", "[[profile]] rates", "a list of numbers; got []"),
    (SLOTS + TRIALS + PROFILE + "rates = [1, 0]\n", "[[profile]] rates", "> 0; got 0"),
    (
        SLOTS + TRIALS + PROFILE + "rates = [1]\npoints = { 1 = 2 }\n",
        "[[profile]]",
        "give one of rates, points",
    ),
    (
        SLOTS + TRIALS + PROFILE + "points = { 0 = 2 }\n",
        "[[profile]] points",
        "rates at widths 1, 2, … below 1000000; got 0",
    ),
    (
        SLOTS + TRIALS + PROFILE + "points = { 4294967296 = 2 }\n",
        "[[profile]] points",
        "rates at widths 1, 2, … below 1000000; got 4294967296",
    ),
    (SLOTS + TRIALS + PROFILE + "points = { 2 = 0 }\n", "[[profile]] points 2", "> 0; got 0"),
    (SLOTS + TRIALS + PROFILE + "up = -1\n", "[[profile]] up", ">= 0; got -1"),
    (
        SLOTS + TRIALS + PROFILE + "state = 1\nswitch = 1\n",
        "[[profile]]",
        "give one of switch, state",
    ),
    (
        SLOTS + TRIALS + "[hop]\nbandwidth = 0\n" + PROFILE + "state = 1\n",
        "[hop] bandwidth",
        "> 0; got 0",
    ),
    (SLOTS + TRIALS + PROFILE + "config = { a = 1 }\n", "[[profile]]", "no row for trial a0000"),
    (
        "[slots]\ncount = 1\nmemory = 2\n" + TRIALS + PROFILE + "memory = 3\n",
        "[[profile]] memory",
        "the largest slot has 2",
    ),
    (
        SLOTS + TRIALS + PROFILE + "packing = { share = 0.5 }\n",
        "[[profile]] packing usual",
        "it is missing",
    ),
    (
        SLOTS + TRIALS + PROFILE + "packing = { usual = 8 }\n",
        "[[profile]] packing share",
        "give share, or compute",
    ),
    (
        SLOTS + TRIALS + PROFILE + "packing = { share = 1, usual = 8 }\n",
        "[[profile]] packing share",
        "in [0, 1); got 1",
    ),
    (
        SLOTS + TRIALS + PROFILE + "packing = { share = 0.5, compute = 1, usual = 8 }\n",
        "[[profile]] packing",
        "give one of share",
    ),
    (
        SLOTS + TRIALS + PROFILE + "packing = { share = 0.5, fixed = 1, usual = 8 }\n",
        "[[profile]] packing fixed",
        "leave it out",
    ),
    (
        SLOTS + TRIALS + PROFILE + "packing = { compute = 0, usual = 8 }\n",
        "[[profile]] packing compute",
        "compute > 0",
    ),
    (
        SLOTS + TRIALS + PROFILE + "packing = { compute = 1, repack = -1, usual = 8 }\n",
        "[[profile]] packing repack",
        ">= 0; got -1",
    ),
    (
        SLOTS + TRIALS + PROFILE + "rates = [1]\npacking = { compute = 1, usual = 8 }\n",
        "[[profile]] rates",
        "packing.share",
    ),
    (
        SLOTS
        + TRIALS
        + "config = { batch_size = 'x' }\n"
        + PROFILE
        + "packing = { share = 0.5, usual = 8 }\n",
        "[[profile]]",
        "got 'x'",
    ),
    (
        SLOTS + TRIALS + "[policies.elastic]\nhorizon = 1\nspeed = 2\n",
        "[policies.elastic]",
        "unexpected keyword argument 'speed'",
    ),
    (SLOTS + TRIALS + "[policies.x]\nname = 'best'\n", "[policies.x]", "no policy is named 'best'"),
    (
        SLOTS + TRIALS + "[policies]\nfifo = 3\n",
        "[policies] fifo",
        "must be a table, [fifo]; got 3",
    ),
    ("[slots\n", "", "it is not TOML"),
]


@pytest.mark.parametrize(("text", "key", "rule"), BAD)
def test_a_bad_value_gets_one_error_with_file_key_and_rule(tmp_path, text, key, rule):
    with pytest.raises(SpecError) as error:
        loaded(tmp_path, text)
    assert error.value.key == key
    assert rule in error.value.rule
    assert str(error.value).startswith(f"{tmp_path / 'spec.toml'}: {key}")
    assert "\n" not in str(error.value) or key == ""


def test_specs_of_one_name_have_pages_of_their_own(tmp_path):
    paths = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        paths.append(
            write(tmp_path / folder, SLOTS + TRIALS + "[policies.'a/../b']\nname = 'fifo'\n")
        )
    data, lines = simulate([*paths, paths[1]], out=tmp_path / "out")
    pages = [spec["page"] for spec in data["specs"]]
    assert pages == [
        str(tmp_path / "out" / f"{name}.html") for name in ("one-spec", "two-spec-2", "two-spec-3")
    ]
    assert {path.parent for path in tmp_path.rglob("report.html")} == {
        tmp_path / "out" / f"{name}-a_.._b" for name in ("one-spec", "two-spec-2", "two-spec-3")
    }
    assert [line for line in lines if line.startswith("charts: ")] == [
        f"charts: {page}" for page in pages
    ]
