"""
Which classifier is better, if no two saw the same images?
==========================================================

148 classifiers answered 1,797 images of handwritten digits, each image right or wrong. Suppose that each
answered a few of them only, and some the easy ones. Averages then rank the images, not the classifiers. Item
response theory places both on one scale, predicts the difficulty of images that nobody has answered yet, and
picks the images that tell most.
"""

# %%
# Takers and items
# ----------------
# Rows are takers (classifiers), columns are items (images), 1 is right. Of the classifiers, one half
# calibrates the images, the other half is to be ranked.

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import spearmanr

from seedbed.datasets import load_classifier_responses
from seedbed.estimators import AdaptiveTest, AmortizedIRT, RaschModel

table = load_classifier_responses()
responses, features = table.data, table.item_features
rng = np.random.default_rng(0)
takers, items = rng.permutation(len(responses)), rng.permutation(responses.shape[1])
calibrating, ranked = takers[:74], takers[74:]

# %%
# Easy and hard halves
# --------------------
# Each classifier that is to be ranked answers 200 images: every other one from the easier half, the rest from
# the harder half. The model knows the images from the first half of the classifiers.

rasch = RaschModel().fit(responses[calibrating])
print(f"abilities spread by {rasch.latent_scale_:.2f} logits, reliability {rasch.reliability_:.3f}")

order = np.argsort(rasch.difficulty_)
easy, hard = np.array_split(order, 2)
seen = np.full((len(ranked), responses.shape[1]), np.nan)
for row, taker in enumerate(ranked):
    asked = rng.choice(easy if row % 2 else hard, 200, replace=False)
    seen[row, asked] = responses[taker, asked]
truth = responses[ranked].mean(axis=1)
average, ability = np.nanmean(seen, axis=1), rasch.transform(seen)[:, 0]
for name, score in (("average of 200 images", average), ("ability from 200 images", ability)):
    print(f"{name}: rank correlation with all images {spearmanr(score, truth).statistic:.3f}")

# %%
# Images that nobody has answered
# -------------------------------
# Difficulty is learned as a function of the image's features inside the likelihood, from 1,400 images, and
# predicted for the rest. ``std`` says how far off that may be.

known, new = items[:1400], items[1400:]
amortized = AmortizedIRT(l2=1.0).fit(responses[calibrating][:, known], item_features=features[known])
predicted, std = amortized.predict_difficulty(features[new])
correlation = np.corrcoef(predicted, rasch.difficulty_[new])[0, 1]
print(
    f"difficulty of new images: correlation {correlation:.2f}, residual {amortized.residual_std_:.2f} logits"
)

# %%
# The next image
# --------------
# An adaptive test asks what tells most at the present estimate. One classifier, until the standard error is
# 0.25:

test = AdaptiveTest(rasch, se_target=0.25)
taker = ranked[np.argsort(truth)[len(truth) // 2]]
while not test.done:
    item = test.ask()
    test.tell(item, responses[taker, item])
print(f"{len(test.trajectory_)} images: ability {test.ability_:.2f} ± {test.ability_std_:.2f}")

# %%
# The figure
# ----------

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
from_easy = np.arange(len(ranked)) % 2 == 1
for axis, score, label in (
    (left, average, "Average of 200 images"),
    (middle, ability, "Ability from 200 images"),
):
    axis.scatter(truth[from_easy], score[from_easy], s=14, color="C0", label="answered easy images")
    axis.scatter(truth[~from_easy], score[~from_easy], s=14, color="C1", label="answered hard images")
    axis.set(xlabel="Average of all 1,797 images", ylabel=label)
left.legend()
left.set_title("Who was asked the easy ones?")
middle.set_title("The same answers on one scale")

steps = test.trajectory_
right.plot(np.arange(1, len(steps) + 1), steps["theta"], color="C2")
right.fill_between(
    np.arange(1, len(steps) + 1),
    steps["theta"] - 1.96 * steps["se"],
    steps["theta"] + 1.96 * steps["se"],
    color="C2",
    alpha=0.25,
)
right.axhline(rasch.transform(responses[[taker]])[0, 0], linestyle="--", color="C3", label="from all images")
right.set(xlabel="Images asked", ylabel="Ability", title="An adaptive test")
right.legend()
plt.show()
