"""
A batch of price intervals that keeps its promise
=================================================

A jeweller prices a delivery of 500 diamonds and wants an interval for each: at most 10 % of *these* 500 may
lie outside, and that with 80 % confidence. Split conformal prediction promises 10 % on average over
deliveries, and exceeds it in every second one.
"""

# %%
# Diamonds
# --------
# Log price from weight, grades and size. 2,000 diamonds train the model, 1,000 calibrate it, 500 are the
# delivery.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from seedbed.datasets import load_diamonds
from seedbed.estimators import (
    CoJERRegressor,
    false_coverage_proportion,
    fcp_exceedance_probability,
)

X, price = load_diamonds(return_X_y=True)
y = np.log10(price)
order = np.random.default_rng(3).permutation(len(y))
train, calibration, batch, rest = np.split(order, [2000, 3000, 3500])

# %%
# One model, three promises
# -------------------------
# ``fit`` trains and calibrates; ``predict_interval`` returns what MAPIE returns. ``bound`` selects others'
# intervals for comparison.

model = CoJERRegressor(HistGradientBoostingRegressor(max_iter=60, random_state=0), alpha=0.1, delta=0.2)
model.fit(X[train], y[train], X_calibration=X[calibration], y_calibration=y[calibration])

for bound in ("marginal", "cojer", "dkw"):
    points, intervals = model.predict_interval(X[batch], bound=bound)
    fcp = false_coverage_proportion(y[batch], intervals)[0]
    factor = 10 ** np.mean(intervals[:, 1] - points[:, None])
    print(f"{bound:8} misses {fcp:.1%} of the delivery; prices within a factor of {factor:.3f}")

# %%
# How likely each promise is to break is known before any data are seen:

for name, level in (("split conformal", 100), ("CoJER", 71)):
    print(f"{name}: P(more than 10 % misses) = {fcp_exceedance_probability(1000, 500, level, 0.1):.3f}")

# %%
# Choose the share of misses afterwards
# -------------------------------------
# The guarantee holds for all levels at once. So look at the widths first: which share of misses buys
# intervals within 25 % of the predicted price?

points, intervals, bounds = model.predict_interval_all(X[batch])
factor = 10 ** (intervals[0, 1] - points[0])
chosen = int(np.argmax(factor <= 1.25))
print(
    f"within 25 % for at most {bounds[chosen]:.1%} misses; came: "
    f"{false_coverage_proportion(y[batch], intervals[:, :, chosen]):.1%}"
)

# %%
# Does it hold?
# -------------
# 300 more deliveries from the diamonds that are left, each with its own calibration rows.

rng = np.random.default_rng(0)
came = {"marginal": [], "cojer": [], "dkw": []}
frozen = CoJERRegressor(model.estimators_[0], alpha=0.1, delta=0.2, prefit=True)
for _ in range(300):
    rows = rng.choice(rest, 1500, replace=False)
    frozen.conformalize(X[rows[:1000]], y[rows[:1000]])
    for bound, values in came.items():
        ends = frozen.predict_interval(X[rows[1000:]], bound=bound)[1]
        values.append(false_coverage_proportion(y[rows[1000:]], ends)[0])

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
shown = np.argsort(points)[::10]
ends = intervals[shown, :, 50]  # at most 50 of 500
inside = (y[batch[shown]] >= ends[:, 0]) & (y[batch[shown]] <= ends[:, 1])
left.vlines(np.arange(len(shown)), 10 ** ends[:, 0], 10 ** ends[:, 1], color="C0", alpha=0.5)
left.scatter(np.arange(len(shown))[inside], price[batch[shown]][inside], s=10, color="C0", label="inside")
left.scatter(np.arange(len(shown))[~inside], price[batch[shown]][~inside], s=25, color="C3", label="missed")
left.set(yscale="log", xlabel="Every tenth diamond by predicted price", ylabel="Price in dollars")
left.set_title("CoJER's intervals")
left.legend()

realised = false_coverage_proportion(y[batch], intervals)
middle.plot(bounds, bounds, "--", color="C3", label="bound")
middle.plot(bounds, realised, drawstyle="steps-post", color="C0", label="came")
middle.set(xlabel="Allowed share of misses", ylabel="Share of misses", title="All levels at once")
middle.legend()

labels = {"marginal": "split conformal", "cojer": "CoJER", "dkw": "DKW"}
for i, (bound, values) in enumerate(came.items()):
    broken = np.mean(np.array(values) > 0.1 + 1e-9)
    label = f"{labels[bound]}: {broken:.0%} broken"
    right.hist(values, bins=np.arange(0, 0.16, 0.006), alpha=0.6, color=f"C{i}", label=label)
    print(f"{labels[bound]}: {broken:.1%} of 300 deliveries have more than 10 % misses")
right.axvline(0.1, linestyle="--", color="C3")
right.set(xlabel="Share of misses", ylabel="Deliveries", title="300 deliveries")
right.legend()
plt.show()
