"""Forward-forward: two forward passes, each layer tells the right label from a wrong one.

Hinton, "The Forward-Forward Algorithm: Some Preliminary Investigations", 2022, arXiv:2212.13345.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from seedbed.checks import check_number
from seedbed.lightning_modules.dll.architecture import NetworkConfig
from seedbed.lightning_modules.dll.layers import DLLLayer
from seedbed.lightning_modules.dll.row_weights import weighted
from seedbed.lightning_modules.dll.rules import LearnStep
from seedbed.lightning_modules.dll.stages import Stage, StagedNetwork, build_stages, normalise

Network = TypeVar("Network", bound="ForwardForward")


class ForwardForward(StagedNetwork):
    r"""Stages that learn high goodness for a sample with its label, low goodness with a wrong one.

    The label enters with the input: one-hot, times ``label_scale``, appended to the features, or as constant
    channels of an image. Each stage normalises what it gets to unit mean square, which hides the goodness of
    the stage below, and computes ``h_l = relu(W_l x̂)``. With goodness ``G_l = s/√n Σ (h_l² - θ)`` over the n
    units of the stage, it descends

    .. math:: L_l = \mathrm{softplus}(-G_l^+) + \mathrm{softplus}(G_l^-),

    ``+`` with the label, ``-`` with another one drawn at random. A class's logit is ``Σ_l G_l`` with that
    label. Dividing by ``√n`` keeps the logistic function off its plateaus whatever the width. The output
    layer of the description only says how many classes there are.

    Parameters
    ----------
    stem : sequence of DLLLayer
        Layers without weights in front of the first stage.
    stages : sequence of Stage
        Hidden stages, bottom to top.
    num_classes : int
        K.
    threshold : float
        θ, per unit.
    sharpness : float
        s.
    label_scale : float
        Size of the label's entry.
    random_state : int
        Seed of the wrong labels.
    clip_value : float or None
        Bound on each entry of each gradient.

    Examples
    --------
    >>> import torch
    >>> from seedbed.lightning_modules.dll.architecture import LayerSpec, NetworkConfig
    >>> layers = tuple(LayerSpec("linear", size) for size in (8, 6, 3))
    >>> network = ForwardForward.from_config(NetworkConfig(layers, input_shape=(4,)))
    >>> network(torch.ones(5, 4)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        stem: Sequence[DLLLayer],
        stages: Sequence[Stage],
        num_classes: int,
        *,
        threshold: float = 0.1,
        sharpness: float = 10.0,
        label_scale: float = 3.0,
        random_state: int = 0,
        clip_value: float | None = 50.0,
    ) -> None:
        super().__init__(stem, stages, output="softmax", clip_value=clip_value)
        check_number("num_classes", num_classes, low=2, integer=True)
        check_number("threshold", threshold, low=0, closed="neither")
        check_number("sharpness", sharpness, low=0, closed="neither")
        check_number("label_scale", label_scale, low=0, closed="neither")
        self.num_classes = num_classes
        self.threshold = threshold
        self.sharpness = sharpness
        self.label_scale = label_scale
        self.seed(random_state)

    @classmethod
    def from_config(cls: type[Network], config: NetworkConfig) -> Network:
        """Build from a description; options: ``threshold``, ``sharpness`` and ``label_scale``."""
        options = config.rule_options(threshold=0.1, sharpness=10.0, label_scale=3.0)
        if config.output != "softmax":
            raise ValueError(f"learning_rule='ff' contrasts class labels; got output={config.output!r}")
        if len([spec for spec in config.layers if spec.weighted]) < 2:
            raise ValueError("learning_rule='ff' needs at least one hidden layer")
        shape = config.input_shape
        if len(shape) > 1 and config.layers[0].kind == "flatten":
            # Flatten first, so that the label is appended once rather than at every position.
            shape = (prod(shape),)
        wide = replace(config, input_shape=(shape[0] + config.num_outputs, *shape[1:]))
        stem, stages = build_stages(wide, "ff", activation="relu", sigma=1.0, clip_value=None)
        return cls(
            stem,
            stages[:-1],
            config.num_outputs,
            random_state=config.random_state,
            clip_value=config.clip_value,
            **options,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Goodness of each class: one pass per label, all in one batch."""
        count = len(x)
        labels = torch.arange(self.num_classes, device=x.device).repeat_interleave(count)
        repeated = x.repeat(self.num_classes, *[1] * (x.ndim - 1))
        logits = torch.stack([self.goodness(h) for h in self.activities(repeated, labels)]).sum(0)
        return logits.view(self.num_classes, count).T

    def evaluate(self, x: Tensor) -> None:
        """Offer no differentiable form: the layers descend losses of their own."""

    def activities(self, x: Tensor, labels: Tensor) -> list[Tensor]:
        """Outputs of all stages.

        Parameters
        ----------
        x : Tensor
            A batch.
        labels : Tensor of shape (batch,)
            Labels to go with it.

        Returns
        -------
        list of Tensor
            One per stage.
        """
        h = self.label(x, labels)
        if self.stem is not None:
            h = self.stem(h)
        outputs = []
        for stage in self.stack:
            h = stage(normalise(h))
            outputs.append(h)
        return outputs

    def label(self, x: Tensor, labels: Tensor) -> Tensor:
        """Append labels to inputs.

        Parameters
        ----------
        x : Tensor
            A batch.
        labels : Tensor of shape (batch,)
            Their labels.

        Returns
        -------
        Tensor
            With K more features or channels.
        """
        if self.stack[0].unit.weight.ndim == 2:
            x = x.flatten(1)
        size = self.label_scale / prod(x.shape[2:]) ** 0.5
        marks = functional.one_hot(labels, self.num_classes).to(x) * size
        marks = marks.reshape(*marks.shape, *[1] * (x.ndim - 2)).expand(-1, -1, *x.shape[2:])
        return torch.cat([x, marks], dim=1)

    def goodness(self, h: Tensor) -> Tensor:
        """Goodness of each sample.

        Parameters
        ----------
        h : Tensor of shape (batch, ...)
            Output of a stage.

        Returns
        -------
        Tensor of shape (batch,)
            ``s / √n · Σ (h² - θ)``.
        """
        flat = h.flatten(1)
        return self.sharpness / flat.shape[1] ** 0.5 * (flat.square() - self.threshold).sum(1)

    def _learn(self, x: Tensor, target: Tensor, sample_weight: Tensor | None) -> LearnStep:
        assert self.generator is not None
        right = target.argmax(1)
        shift = torch.randint(1, self.num_classes, right.shape, generator=self.generator).to(right)
        labels = torch.cat([right, (right + shift) % self.num_classes])
        both = torch.cat([x, x])
        weight = None if sample_weight is None else torch.cat([sample_weight, sample_weight])
        sign = torch.ones(len(both), dtype=x.dtype, device=x.device)
        sign[len(x) :] = -1.0
        losses = []
        for stage, h in zip(self.stack, self.activities(both, labels)):
            margin = sign * self.goodness(h)
            losses.append(functional.softplus(-margin))
            # -dL/dh = sign · σ(-margin) · s/√n · 2h; half, for the layers' factor of two.
            push = sign * torch.sigmoid(-margin) * self.sharpness / h[0].numel() ** 0.5
            stage.update(weighted(h, push) if weight is None else weighted(h, push * weight.to(push)))
        rows = torch.stack(losses).sum(0).view(2, -1).sum(0)
        if sample_weight is None:
            return LearnStep(rows.mean(), None)
        shares = sample_weight.to(rows)
        return LearnStep((shares * rows).sum() / shares.sum().clamp_min(torch.finfo(rows.dtype).tiny), None)
