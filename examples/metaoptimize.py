"""
A language model without a learning-rate search
===============================================

A small network learns to predict the next character of Python's own help pages. Nobody has tuned its
learning rate: AdamW gets one that is a thousand times too small, and MetaOptimize has to find a better one
while training, first one for all weights, then one per tensor.
"""

# %%
# Text
# ----
# Every example is 16 characters and the one that follows them.

import io

import matplotlib.pyplot as plt
import torch
from torch import nn

from seedbed.datasets import load_topics
from seedbed.optimizers import MetaOptimize, StepSizeDisplay

CONTEXT, STEPS, BATCH, START = 16, 2500, 128, 1e-6

topics = load_topics()
codes = torch.as_tensor(topics.data)
cut = len(codes) * 9 // 10
print(f"{len(codes):,} characters of {len(topics.vocabulary)} kinds; the last tenth is for the test")


def examples(starts):
    """Contexts (n, 16) and next characters (n,)."""
    window = codes[starts[:, None] + torch.arange(CONTEXT + 1)]
    return window[:, :-1], window[:, -1]


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(len(topics.vocabulary), 16),
        nn.Flatten(),
        nn.Linear(16 * CONTEXT, 256),
        nn.ReLU(),
        nn.Linear(256, len(topics.vocabulary)),
    )


# %%
# Training
# --------
# The loop is the usual one; ``step_sizes()`` tells what the optimizer has come to.


def train(optimizer, model, steps=STEPS, seed=0):
    rng = torch.Generator().manual_seed(seed)
    losses, rates = [], []
    for _ in range(steps):
        x, y = examples(torch.randint(cut - CONTEXT, (BATCH,), generator=rng))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if hasattr(optimizer, "step_sizes"):
            rates.append(dict(optimizer.step_sizes()))
    return losses, rates


def test_loss(model):
    x, y = examples(torch.arange(cut, len(codes) - CONTEXT - 1, 7))
    with torch.no_grad():
        return nn.functional.cross_entropy(model(x), y).item()


runs = {}

model = network()
runs["AdamW"] = train(torch.optim.AdamW(model.parameters(), lr=START), model)
print(f"AdamW at {START:g}: {test_loss(model):.3f} nats per character")

# %%
# Now wrapped. A sign rule moves the rate by one percent per step, so it needs some 900 steps from 1e-6 to
# 1e-2.

model = network()
optimizer = MetaOptimize(torch.optim.AdamW(model.parameters(), lr=START), meta_lr=1e-2, gamma=0.9999)
print(f"steps to reach 1e-3: {optimizer.steps_to_reach(1e-3)}")
runs["one rate"] = train(optimizer, model)
print(f"MetaOptimize from {START:g}: {test_loss(model):.3f} nats per character, {optimizer.step_sizes()}")

# %%
# And with a rate for each tensor. Parameters that come with their names give the blocks theirs.

model = network()
layered = MetaOptimize(
    torch.optim.AdamW(model.named_parameters(), lr=START), meta_lr=1e-2, gamma=0.9999, blocks="layerwise"
)
runs["a rate per tensor"] = train(layered, model)
print(f"a rate per tensor: {test_loss(model):.3f} nats per character")

# %%
# The figure
# ----------

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for name, (losses, _) in runs.items():
    smooth = torch.tensor(losses).unfold(0, 50, 1).mean(dim=1)
    left.plot(range(50, STEPS + 1), smooth, label=name)
left.set(xlabel="step", ylabel="training loss (nats)", title="From a rate of 1e-6")
left.legend()
StepSizeDisplay.from_history(runs["a rate per tensor"][1], ax=right, name="Rates as they are learned")
right.plot(range(1, STEPS + 1), [step["all"] for step in runs["one rate"][1]], "k", linewidth=3, label="all")
right.legend(fontsize="small")
plt.show()

# %%
# Saved and resumed
# -----------------
# The state is that of a torch optimizer: it loads with ``weights_only=True`` and goes on to the last bit.

file = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": layered.state_dict()}, file)
file.seek(0)
saved = torch.load(file, weights_only=True)

twin = network()
resumed = MetaOptimize(
    torch.optim.AdamW(twin.named_parameters(), lr=START), meta_lr=1e-2, gamma=0.9999, blocks="layerwise"
)
twin.load_state_dict(saved["model"])
resumed.load_state_dict(saved["optimizer"])
same = train(resumed, twin, steps=20, seed=1)[0] == train(layered, model, steps=20, seed=1)[0]
print(f"twenty more steps, resumed and not: {'equal' if same else 'different'}")
