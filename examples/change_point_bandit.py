"""
At which size does a list become too slow?
==========================================

Looking something up in a Python list takes longer the longer the list. Somewhere a look-up exceeds a budget,
here five microseconds, but every timing is noisy. Each query below is a real timing on the machine at hand;
the answer comes with an error probability of one percent, after a fraction of the timings of a sweep.
"""

# %%
# The oracle
# ----------
# A query of a size looks up something that is not in a list of that size, and says whether that took too
# long. The reward is 0 or 1, so its standard deviation is at most 1/2.

import time

import matplotlib.pyplot as plt
import numpy as np

from seedbed.estimators import ChangePointBandit, ChangePointBanditDisplay

BUDGET = 5e-6
sizes = np.round(10 ** np.arange(1, 6.01, 0.5))
lists = {size: list(range(int(size))) for size in sizes}
print(f"{len(sizes)} sizes from {sizes[0]:g} to {sizes[-1]:g}")


def too_slow(points):
    """Whether a look-up in a list of each size exceeds the budget."""
    answers = []
    for size in points[:, 0]:
        haystack = lists[size]
        start = time.perf_counter()
        found = -1 in haystack
        answers.append(float(not found and time.perf_counter() - start > BUDGET))
    return np.array(answers)


# %%
# The search
# ----------

model = ChangePointBandit(delta=0.01, sigma=0.5, max_evals=5000).fit(sizes, oracle=too_slow)
low, high = model.change_intervals_[0]
print(f"between {low:g} and {high:g} elements, after {model.n_evals_} timings; certain: {model.certified_}")
print("timings by size:", dict(zip(sizes.astype(int).tolist(), model.counts_.tolist(), strict=True)))

# %%
# The same by timing all sizes alike, with the same certificate.

uniform = ChangePointBandit(delta=0.01, sigma=0.5, sampling="uniform", max_evals=5000)
uniform.fit(sizes, oracle=too_slow)
print(f"all sizes alike: {uniform.n_evals_} timings")

# %%
# The figure
# ----------
# Left: share of look-ups over budget by size, larger markers for more timings. Right: evidence for the
# reported change against the number of timings, and the line at which it is certain.

display = ChangePointBanditDisplay.from_estimator(model, name=f"Over {BUDGET * 1e6:g} microseconds")
display.ax_.set(xscale="log", xlabel="elements in the list", ylabel="share too slow")
plt.show()

# %%
# A session can stop and go on
# ----------------------------
# A saved session is a small JSON file; another process takes it up and asks for the very same points.

session = ChangePointBandit(delta=0.01, sigma=0.5).start(sizes)
session.tell(sizes, too_slow(sizes[:, None]))
twin = ChangePointBandit(delta=0.01, sigma=0.5).load_state_dict(session.state_dict())
print("both ask for", session.ask(3)[:, 0].tolist(), twin.ask(3)[:, 0].tolist())
