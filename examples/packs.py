"""A pack driven by hand: models come, train together over one stream of data, and go.

python examples/packs.py
"""

from digits import Digits

import shoal

pack = shoal.pack(
    Digits(),
    [{"width": 32, "lr": 1e-2}, {"width": 64, "lr": 1e-2}, {"width": 64, "lr": 1e-4}],
)
pack.train(epochs=2)
scores = {name: values["accuracy"] for name, values in pack.evaluate().items()}
print("after 2 epochs:", {name: round(score, 3) for name, score in scores.items()})

worst = min(scores, key=lambda name: scores[name])
state = pack.free(
    worst
)  # all that its training depends on; pack.load(config, state) would go on with it
late = pack.load({"width": 128, "lr": 1e-2})
pack.train(epochs=3)

scores = {name: values["accuracy"] for name, values in pack.evaluate().items()}
best = max(scores, key=lambda name: scores[name])
print("freed:", worst, "| loaded:", late, "| best:", best, round(scores[best], 3))
print(pack.model(best))
