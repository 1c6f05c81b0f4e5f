"""
Which reviews may be quoted?
============================

A shop wants to quote one sentence of each review, chosen by a sentiment score that costs nothing. People
disagree with that score often enough that the worst quotes are bad. Twenty people rated each sentence of 300
Amazon reviews; with their ratings a threshold is chosen so that the worst quarter of quotes is mild, with
90 % confidence.
"""

# %%
# Ratings
# -------
# The loss of a sentence is 0 for neutral or better, 1 for the worst rating. The machine's score is VADER's,
# turned so that low is good. Reviews have up to 70 sentences, so the table has holes.

import matplotlib.pyplot as plt
import numpy as np

from seedbed.datasets import load_vader_ratings
from seedbed.estimators import ConformalTailRiskController, RejectionSampler, TailRiskDisplay

reviews = load_vader_ratings("amazon")
names, review, counts = np.unique(reviews.group, return_inverse=True, return_counts=True)
place = np.arange(len(review)) - np.repeat(np.cumsum(counts) - counts, counts)
machine = np.full((len(names), counts.max()), np.nan)
human = machine.copy()
machine[review, place] = (1 - reviews.score) / 2
human[review, place] = np.clip(-reviews.rating / 4, 0, 1)
print(f"{len(names)} reviews of up to {counts.max()} sentences; mean loss {np.nanmean(human):.2f}")

# %%
# A threshold
# -----------
# Half of the reviews calibrate, the other half shows what it is worth. With 150 reviews the automatic rule
# takes the bound of Berk and Jones, which holds for any number.

half = np.random.default_rng(0).permutation(len(names))
calibration, rest = half[:150], half[150:]
model = ConformalTailRiskController(risk="cvar", beta=0.75, alpha=0.35, delta=0.1)
model.fit(machine[calibration], human[calibration])
print(f"bound: {model.bound_}; quote sentences with a score up to {model.lambda_:.3f}")
print(f"risk at most {model.ucb_:.2f}; no sentence of {model.abstention_rate_:.0%} of reviews will do")

told = model.evaluate(machine[rest], human[rest])
print("on the other half:", {name: round(value, 2) for name, value in told.items()})

# %%
# Other questions to the same ratings
# -----------------------------------

for risk, alpha in (("mean", 0.15), ("var", 0.3)):
    print(f"{risk} at most {alpha}: {model.control(alpha=alpha, risk=risk):.3f}")

# %%
# The figure
# ----------
# Less risk is bought by abstaining: at the left nearly no review has a sentence that may be quoted.

TailRiskDisplay.from_estimator(model, name="Worst quarter of quoted reviews")
plt.show()

# %%
# In use
# ------
# Sentences come one at a time until one is acceptable.

longest = rest[np.argmax((~np.isnan(machine[rest])).sum(axis=1))]
scores = machine[longest][~np.isnan(machine[longest])]
sentences = iter(f"sentence {number}, score {score:.3f}" for number, score in enumerate(scores))


def next_sentence(_):
    return next(sentences)


def score_of(_, text):
    return float(text.split()[-1])


sampler = RejectionSampler(
    model, next_sentence, score_of, max_samples=len(scores), fallback="nothing to quote"
)
print(sampler.generate("the longest review"))
