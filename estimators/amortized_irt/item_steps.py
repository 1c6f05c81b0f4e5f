"""M-steps in which difficulties follow from features of the items: exactly, or up to a normal residual.

Both take from the E-step, for each item, the gradient and the curvature of the expected log-likelihood in the
difficulty b, other parameters of the item maximised out:

- joint: b_i = f(x_i), and f moves by Newton's step on the whole likelihood;
- residual: b_i = f(x_i) + eps_i, eps_i ~ N(0, tau^2). Each b_i moves to the mode of its posterior, whose
  variance is v_i = 1 / (H_i + 1 / tau^2); f is the regression on the b_i, and tau^2 = mean((b - f)^2 + v).
  Both are iterated on what one E-step says, since tau creeps where answers are few.

Items without features have difficulties of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.estimators.amortized_irt.expectation import Expectation
from seedbed.estimators.amortized_irt.item_features import Design
from seedbed.estimators.amortized_irt.items import Items
from seedbed.estimators.amortized_irt.predictors import Predictor

Floats = NDArray[np.float64]

DISCRIMINATION_PRIOR = (0.0, 0.5)
"""Mean and standard deviation of log a."""
N_REGRESSIONS = 3
"""Fits of f, each followed by one of tau, in each M-step."""
N_SPREADS = 30
"""Updates of tau in each of them."""
LONGEST_STEP = 1.0
"""A difficulty of its own moves at most so far at a time."""
SMALLEST_SHARE = 1 / 16
SMALLEST_CURVATURE = 1e-6
SMALLEST_TAU = 1e-4
"""Below, residuals are gone as far as any answer can tell."""


@dataclass(frozen=True)
class Profile:
    """Gradient and curvature in the difficulty alone.

    Attributes
    ----------
    gradient, curvature : ndarray of shape (n_items,)
        Of the expected log-likelihood in b, maximised over the item's discrimination.
    finish : callable
        Takes new difficulties and the share of the step that was taken, and returns items whose
        discriminations fit them.
    """

    gradient: Floats
    curvature: Floats
    finish: Callable[[Floats, float], Items]


def profile(
    items: Items, expectation: Expectation, discrimination_prior: tuple[float, float] = DISCRIMINATION_PRIOR
) -> Profile:
    """Maximise the discriminations out.

    Parameters
    ----------
    items : Items
        Where the E-step was taken.
    expectation : Expectation
        ``gradient`` (n_items, p) and ``curvature`` (n_items, p, p): in b for p = 1; in slope and intercept
        for p = 2.
    discrimination_prior : tuple of float
        Mean and standard deviation of log a, for p = 2.

    Returns
    -------
    Profile
        What is left.
    """
    b = items.difficulty
    if expectation.gradient.shape[1] == 1:
        curvature = np.maximum(expectation.curvature[:, 0, 0], SMALLEST_CURVATURE)
        return Profile(expectation.gradient[:, 0], curvature, lambda new, _: replace(items, difficulty=new))
    # Slope e^t and intercept -e^t b, as functions of b and t = log a.
    a = items.discrimination
    mean, std = discrimination_prior
    jacobian = np.zeros((len(b), 2, 2))
    jacobian[:, 0, 1], jacobian[:, 1, 0], jacobian[:, 1, 1] = a, -a, -a * b
    gradient = np.einsum("ikj,ik->ij", jacobian, expectation.gradient)
    curvature = np.einsum("ikj,ikl,ilm->ijm", jacobian, expectation.curvature, jacobian)
    gradient[:, 1] -= (np.log(a) - mean) / std**2
    curvature[:, 1, 1] += 1 / std**2
    cross, own = curvature[:, 0, 1], curvature[:, 1, 1]

    def finish(new: Floats, share: float) -> Items:
        step = share * (gradient[:, 1] - cross * (new - b) / share) / own
        slope = a * np.exp(np.clip(step, -LONGEST_STEP / 2, LONGEST_STEP / 2))
        return replace(items, difficulty=new, discrimination=slope)

    return Profile(
        gradient[:, 0] - cross * gradient[:, 1] / own,
        np.maximum(curvature[:, 0, 0] - cross**2 / own, SMALLEST_CURVATURE),
        finish,
    )


@dataclass
class FeatureStep:
    """The M-step of difficulties that are a function of features, with or without a residual.

    Attributes
    ----------
    design : Design
        Features.
    predictor : Predictor
        f.
    tau : float or None
        Standard deviation of the residual; None for the joint model, where there is none.
    free_tau : bool
        Whether tau is estimated.
    variance : ndarray of shape (n_items,)
        v: posterior variance of each difficulty given f and tau.
    discrimination_prior : tuple of float
        Mean and standard deviation of log a, where discriminations are free.
    share : float
        How much of each step is taken, where discriminations are free: less after a turn back.
    last, move : ndarray of shape (2 n_items,), optional
        Where the last step began, and the move before it.
    """

    design: Design
    predictor: Predictor
    tau: float | None = None
    free_tau: bool = True
    variance: Any = None
    discrimination_prior: tuple[float, float] = DISCRIMINATION_PRIOR
    share: float = 1.0
    last: Any = None
    move: Any = None

    def start(self, items: Items) -> Items:
        """Fit f to difficulties found otherwise.

        Parameters
        ----------
        items : Items
            First guess.

        Returns
        -------
        Items
            The same with the difficulties that the model has for them.
        """
        known = self.design.known
        b = items.difficulty
        self.predictor = self.predictor.refit(self.design.rows(), np.ones(known.sum()), b[known])
        if self.tau is not None:
            if self.free_tau:
                self.tau = max(float(np.std((b - self._function())[known])), 0.1)
            return items
        return replace(items, difficulty=np.where(known, self._function(), b))

    def update(self, items: Items, expectation: Expectation) -> Items:
        """Take one M-step.

        Parameters
        ----------
        items : Items
            Where the E-step was taken.
        expectation : Expectation
            Its gradient and curvature.

        Returns
        -------
        Items
            New items; f, tau and the variances are kept.
        """
        found = profile(items, expectation, self.discrimination_prior)
        if expectation.gradient.shape[1] > 1:
            self._pace(items)
        b, gradient, curvature = items.difficulty, found.gradient, found.curvature
        known = self.design.known
        own = b + self.share * np.clip(gradient / curvature, -LONGEST_STEP, LONGEST_STEP)
        self.variance = 1 / curvature
        if self.tau is None:
            weight = curvature[known] / self.share
            score = weight * b[known] + gradient[known]
            self.predictor = self.predictor.refit(self.design.rows(), weight, score)
            new = np.where(known, self._function(), own)
            self.variance = np.where(known, 0.0, self.variance)
            return found.finish(new, self.share)
        self._regress(b + gradient / curvature, 1 / curvature)
        precision = 1 / self.tau**2
        variance = 1 / (curvature + precision)
        pulled = (gradient - (b - self._function()) * precision) * variance
        new = np.where(known, b + self.share * np.clip(pulled, -LONGEST_STEP, LONGEST_STEP), own)
        self.variance = np.where(known, variance, self.variance)
        return found.finish(new, self.share)

    def _pace(self, items: Items) -> None:
        """Take shorter steps after a turn back: Newton's overshoot where takers are few."""
        place = np.concatenate([items.difficulty, np.log(items.discrimination)])
        if self.last is not None:
            move = place - self.last
            if self.move is not None:
                back = float(move @ self.move) < 0
                self.share = max(self.share / 2, SMALLEST_SHARE) if back else self.share
            self.move = move
        self.last = place

    def _regress(self, target: Floats, error: Floats) -> None:
        """Fit f and tau to targets that differ from f by N(0, tau^2 + error).

        To the E-step each difficulty is its target with that error. Integrating it out gives the same f and
        tau as updates from the mode and its variance do in the end, in fewer E-steps.
        """
        assert self.tau is not None
        known = self.design.known
        target, error = target[known], error[known]
        for _ in range(N_REGRESSIONS):
            weight = 1 / (self.tau**2 + error)
            self.predictor = self.predictor.refit(self.design.rows(), weight, weight * target)
            if not self.free_tau:
                return
            squared, left = self.tau**2, (target - self.predictor.predict(self.design.rows())) ** 2
            for _ in range(N_SPREADS):  # Fisher's scoring, which does not creep where tau is 0
                weight = 1 / (squared + error)
                score = float((weight**2 * left - weight).sum())
                squared = max(squared + score / float((weight**2).sum()), 0.0)
            self.tau = max(float(np.sqrt(squared)), SMALLEST_TAU)

    def _function(self) -> Floats:
        """F at every item."""
        return self.predictor.predict(self.design.matrix)

    def log_prior(self, items: Items) -> float:
        """Log density of residuals and coefficients, up to a constant.

        With a residual, the variances of the difficulties are in it: Laplace's approximation of the integral
        over them.
        """
        found = -self.predictor.penalty()
        if np.ptp(items.discrimination) > 0:
            mean, std = self.discrimination_prior
            found -= 0.5 * float((((np.log(items.discrimination) - mean) / std) ** 2).sum())
        if self.tau is None:
            return found
        known = self.design.known
        gap = (items.difficulty - self._function())[known] / self.tau
        found -= 0.5 * float(gap @ gap) + known.sum() * float(np.log(self.tau))
        if self.variance is not None:
            found += 0.5 * float(np.log(self.variance[known]).sum())
        return found

    def shift(self, items: Items, mean: float, scale: float) -> Items:
        """Move to the ability scale (theta - mean) / scale.

        Parameters
        ----------
        items : Items
            On the old scale.
        mean, scale : float
            Of the old scale, which become 0 and 1.

        Returns
        -------
        Items
            On the new scale; f, tau and the variances have moved too.
        """
        self.predictor = self.predictor.shifted(mean, scale)
        if self.tau is not None:
            self.tau = self.tau / scale
        if self.variance is not None:
            self.variance = self.variance / scale**2
        return replace(
            items,
            difficulty=(items.difficulty - mean) / scale,
            discrimination=items.discrimination * scale,
            difficulty_std=items.difficulty_std / scale,
        )
