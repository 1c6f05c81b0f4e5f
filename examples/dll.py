"""
Feedback that comes to agree with the signal
============================================

Backpropagation needs the error to travel down by the same weights that carried the signal up. Dendritic
localized learning gives the error weights of its own, random at first, and lets both learn where they meet.
Here a network learns to read digits that way. Layer by layer, its update turns towards the gradient that it
never computes.
"""

# %%
# Digits
# ------
# Standardised by all pixels together.

import matplotlib.pyplot as plt
import numpy as np
import torch
from lightning.pytorch import Callback
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from seedbed.estimators import AlignmentDisplay, DLLMLPClassifier
from seedbed.lightning_modules import DLLClassifier
from seedbed.training import TensorBatches, fit_module

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X.astype(np.float32), y, test_size=0.3, stratify=y, random_state=0
)
mean, scale = X_train.mean(), X_train.std()
X_train, X_test = (X_train - mean) / scale, (X_test - mean) / scale

# %%
# One network, four rules
# -----------------------
# Nothing but ``learning_rule`` changes. ``"fa"`` is DLL whose feedback weights never learn: the comparison
# that counts.

settings = {"hidden_layer_sizes": (128, 64), "max_iter": 40, "accelerator": "cpu", "random_state": 0}
models = {}
for rule in ("bp", "dll", "fa", "kolen_pollack"):
    models[rule] = DLLMLPClassifier(learning_rule=rule, **settings).fit(X_train, y_train)
    print(f"{rule:14s} test accuracy {models[rule].score(X_test, y_test):.3f}")

# %%
# How far from the gradient?
# --------------------------
# A module logs the angle between each layer's update and backpropagation's gradient. The lowest layers have
# the most to find out; the output layer's update *is* the gradient.


class Angles(Callback):
    """Collects the angles that the module logs on the first batch of each epoch."""

    def __init__(self):
        self.curve = []

    def on_train_epoch_end(self, trainer, pl_module):  # noqa: ARG002
        found = trainer.callback_metrics
        names = [name for name in found if name.startswith("bp_angle/")]
        self.curve.append([float(found[name]) for name in sorted(names)])


angles = Angles()
module = DLLClassifier(
    [128, 64], input_shape=64, lr=1e-3, lr_schedule="none", log_bp_angle=True, random_state=0
)
batches = TensorBatches(torch.as_tensor(X_train), torch.as_tensor(y_train), batch_size=64, seed=0)
fit_module(module, batches, max_epochs=40, accelerator="cpu", callbacks=[angles])
print("angles after the last epoch:", np.round(angles.curve[-1], 1))

# %%
# The picture
# -----------

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
AlignmentDisplay.from_estimator(models["dll"], ax=left, name="DLL: forward and feedback weights")
for place, curve in enumerate(np.transpose(angles.curve), start=1):
    right.plot(np.arange(1, len(curve) + 1), curve, label=f"layer {place}")
right.axhline(90, linestyle="dotted", color="C7")
right.set(xlabel="epoch", ylabel="degrees", title="DLL's update and the gradient")
right.legend()
plt.show()
