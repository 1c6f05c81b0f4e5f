"""Functions from item features to difficulty that fit inside EM: linear, and a small network.

The M-step asks each for the largest ``sum_i score_i f_i - weight_i f_i^2 / 2`` less its penalty, where f_i is
the value at item i. With H and g the curvature and gradient of the marginal likelihood in the difficulty b,
``weight = H`` and ``score = H b + g`` is Newton's step for f = X w, and ``weight = 1 / tau^2``, ``score =
b / tau^2`` is the regression on the difficulties.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse.linalg import LinearOperator, cg

Floats = NDArray[np.float64]
Matrix = Any
"""A dense array or a scipy sparse array."""

DENSE_FEATURES = 2000
"""Up to so many features (or items) one system is solved directly; beyond, by conjugate gradients."""
MOST_STEPS = 4000
"""Conjugate gradients end here at the latest; the next M-step goes on from there."""


class Predictor(Protocol):
    """A difficulty function. Instances do not change; :meth:`refit` and the like return new ones."""

    def predict(self, X: Matrix) -> Floats:
        """Difficulties of items with features X."""

    def refit(self, X: Matrix, weight: Floats, score: Floats) -> Self:
        """Improve the quadratic objective of the module's docstring."""

    def shifted(self, mean: float, scale: float) -> Self:
        """Return the function (f - mean) / scale."""

    def penalty(self) -> float:
        """What the objective loses to regularisation."""


@dataclass(frozen=True)
class LinearPredictor:
    """f(x) = intercept + x'w with the penalty l2 |w|^2 / 2.

    Attributes
    ----------
    coef : ndarray of shape (n_features,)
        w.
    intercept : float
        Without penalty.
    l2 : float
        Precision of a normal prior on w.
    """

    coef: Floats
    intercept: float
    l2: float

    @classmethod
    def zero(cls, n_features: int, l2: float) -> "LinearPredictor":
        """Return the function 0."""
        return cls(np.zeros(n_features), 0.0, l2)

    def predict(self, X: Matrix) -> Floats:
        """Difficulties of items with features X."""
        return np.asarray(X @ self.coef) + self.intercept

    def refit(self, X: Matrix, weight: Floats, score: Floats) -> "LinearPredictor":
        """Return the best linear function.

        Parameters
        ----------
        X : {ndarray, csr_array} of shape (n_items, n_features)
            Features.
        weight, score : ndarray of shape (n_items,)
            The quadratic.

        Returns
        -------
        LinearPredictor
            Its maximiser.
        """
        total = weight.sum()
        center = np.asarray(X.T @ weight) / total
        middle = score.sum() / total
        coef = _solve(X, center, weight, score - weight * middle, self.l2, self.coef)
        return replace(self, coef=coef, intercept=float(middle - center @ coef))

    def shifted(self, mean: float, scale: float) -> "LinearPredictor":
        """Return the function (f - mean) / scale."""
        return replace(self, coef=self.coef / scale, intercept=(self.intercept - mean) / scale)

    def penalty(self) -> float:
        """l2 |w|^2 / 2."""
        return 0.5 * self.l2 * float(self.coef @ self.coef)


def _solve(X: Matrix, center: Floats, weight: Floats, target: Floats, l2: float, start: Floats) -> Floats:
    """Solve (Z'HZ + l2) w = Z't for Z = X - center and H = diag(weight); sum(target) is 0."""
    n, d = X.shape
    right = np.asarray(X.T @ target)
    if min(n, d) > DENSE_FEATURES:
        return _conjugate(X, center, weight, right, l2, start)
    if d > DENSE_FEATURES or l2 == 0:
        # Few items, or nothing that keeps the system regular: rows weighted by the root of H.
        root = np.sqrt(np.maximum(weight, 1e-12 * weight.max()))
        rows = root[:, None] * ((X.toarray() if sparse.issparse(X) else X) - center)
        if l2 == 0:
            return np.asarray(linalg.lstsq(rows, target / root, cond=1e-10)[0])
        dual = linalg.solve(rows @ rows.T + l2 * np.eye(n), target / root, assume_a="pos")
        return np.asarray(rows.T @ dual)
    gram = _gram(X, weight) - weight.sum() * np.outer(center, center)
    gram.flat[:: d + 1] += l2
    try:
        return np.asarray(linalg.cho_solve(linalg.cho_factor(gram), right))
    except linalg.LinAlgError:
        # l2 is lost in rounding beside nearly collinear features.
        return np.asarray(linalg.lstsq(gram, right, cond=1e-13)[0])


def _gram(X: Matrix, weight: Floats) -> Floats:
    if sparse.issparse(X):
        return np.asarray((X.T @ (sparse.diags_array(weight) @ X)).toarray())
    return np.asarray((X * weight[:, None]).T @ X)


def _conjugate(X: Matrix, center: Floats, weight: Floats, right: Floats, l2: float, start: Floats) -> Floats:
    """Solve by conjugate gradients, with the diagonal as preconditioner; X is only multiplied by."""
    d = X.shape[1]
    total = weight.sum()
    squares = X.multiply(X) if sparse.issparse(X) else np.square(X)
    diagonal = np.asarray(squares.T @ weight).ravel() - total * center**2 + l2
    diagonal = np.maximum(diagonal, 1e-10 * diagonal.max())

    def times(v: Floats) -> Floats:
        return np.asarray(X.T @ (weight * (X @ v))) - total * center * (center @ v) + l2 * v

    system = LinearOperator((d, d), matvec=times, dtype=np.float64)
    scaled = LinearOperator((d, d), matvec=lambda v: v.ravel() / diagonal, dtype=np.float64)
    found, _ = cg(system, right, x0=start, rtol=1e-8, atol=0.0, maxiter=MOST_STEPS, M=scaled)
    return np.asarray(found)


def linear_uncertainty(X: Matrix, weight: Floats, l2: float) -> tuple[Floats, Floats]:
    """Covariance of the coefficients of a linear fit.

    Parameters
    ----------
    X : {ndarray, csr_array} of shape (n_items, n_features)
        Features, at most 2000.
    weight : ndarray of shape (n_items,)
        Precision of each item's target.
    l2 : float
        Prior precision.

    Returns
    -------
    center : ndarray of shape (n_features,)
        Where the intercept is independent of the coefficients.
    covariance : ndarray of shape (n_features + 1, n_features + 1)
        Of the value at the centre, which comes first, and the coefficients.
    """
    total = weight.sum()
    center = np.asarray(X.T @ weight) / total
    gram = _gram(X, weight) - total * np.outer(center, center)
    gram.flat[:: len(gram) + 1] += l2
    covariance = np.zeros((len(center) + 1, len(center) + 1))
    covariance[0, 0] = 1 / total
    covariance[1:, 1:] = linalg.pinvh(gram)
    return center, covariance


@dataclass(frozen=True)
class NetworkPredictor:
    """f(x) = intercept + a network of ELU layers of the standardised features, trained by Adam.

    Weights are NumPy arrays, so that predicting needs no torch.

    Attributes
    ----------
    weights, biases : tuple of ndarray
        Of each layer, the last without a bias: that is the intercept.
    center, spread : ndarray of shape (n_features,)
        What features are standardised by.
    intercept, slope : float
        f = intercept + slope * network.
    learning_rate, weight_decay : float
        Of Adam.
    n_steps : int
        Steps for each refit.
    moments : tuple, optional
        Adam's state, which lives on from refit to refit.
    """

    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]
    center: Floats
    spread: Floats
    intercept: float = 0.0
    slope: float = 1.0
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    n_steps: int = 50
    moments: Any = None

    @classmethod
    def draw(
        cls, X: Floats, hidden: tuple[int, ...], rng: np.random.RandomState, **settings: Any
    ) -> "NetworkPredictor":
        """Make a network for features like X.

        Parameters
        ----------
        X : ndarray of shape (n_items, n_features)
            Features.
        hidden : tuple of int
            Widths of the hidden layers.
        rng : RandomState
            Draws the weights, uniform within 1 / sqrt(inputs).
        **settings
            Other attributes.

        Returns
        -------
        NetworkPredictor
            Not trained yet.
        """
        sizes = (X.shape[1], *hidden, 1)
        bounds = [1 / np.sqrt(size) for size in sizes[:-1]]
        weights = tuple(
            rng.uniform(-bound, bound, (size, wide)).astype(np.float32)
            for bound, size, wide in zip(bounds, sizes[:-1], sizes[1:], strict=True)
        )
        biases = tuple(
            rng.uniform(-bound, bound, wide).astype(np.float32)
            for bound, wide in zip(bounds, hidden, strict=False)
        )
        spread = X.std(axis=0)
        return cls(weights, biases, X.mean(axis=0), np.where(spread > 0, spread, 1.0), **settings)

    def _standardised(self, X: Matrix) -> NDArray[np.float32]:
        dense = X.toarray() if sparse.issparse(X) else np.asarray(X)
        return ((dense - self.center) / self.spread).astype(np.float32)

    def predict(self, X: Matrix) -> Floats:
        """Difficulties of items with features X."""
        layer = self._standardised(X)
        for weight, bias in zip(self.weights[:-1], self.biases, strict=True):
            layer = layer @ weight + bias
            layer = np.where(layer > 0, layer, np.expm1(np.minimum(layer, 0)))
        return self.intercept + self.slope * (layer @ self.weights[-1])[:, 0].astype(float)

    def refit(self, X: Matrix, weight: Floats, score: Floats) -> "NetworkPredictor":
        """Take some steps of Adam on the quadratic, then set the intercept to its best.

        Parameters
        ----------
        X : {ndarray, csr_array} of shape (n_items, n_features)
            Features.
        weight, score : ndarray of shape (n_items,)
            The quadratic.

        Returns
        -------
        NetworkPredictor
            The network after the steps.
        """
        import torch

        total = float(weight.sum())
        inputs = torch.from_numpy(self._standardised(X))
        # The intercept is solved for: what is left of the quadratic are deviations from weighted means.
        curve = torch.from_numpy((weight / total).astype(np.float32))
        linear = torch.from_numpy(((score - weight * score.sum() / total) / total).astype(np.float32))
        layers = [torch.from_numpy(w.copy()).requires_grad_() for w in self.weights]
        shifts = [torch.from_numpy(b.copy()).requires_grad_() for b in self.biases]
        optimizer = torch.optim.Adam(
            [*layers, *shifts], lr=self.learning_rate, weight_decay=self.weight_decay
        )
        if self.moments is not None:
            optimizer.load_state_dict(self.moments)
        with torch.enable_grad():
            for _ in range(self.n_steps):
                hidden = inputs
                for layer, shift in zip(layers[:-1], shifts, strict=True):
                    hidden = torch.nn.functional.elu(hidden @ layer + shift)
                value = self.slope * (hidden @ layers[-1])[:, 0]
                value = value - curve @ value
                loss = (0.5 * curve * value**2 - linear * value).sum()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        trained = replace(
            self,
            weights=tuple(layer.detach().numpy() for layer in layers),
            biases=tuple(shift.detach().numpy() for shift in shifts),
            moments=optimizer.state_dict(),
        )
        rest = float((score - weight * trained.predict(X)).sum()) / total
        return replace(trained, intercept=trained.intercept + rest)

    def shifted(self, mean: float, scale: float) -> "NetworkPredictor":
        """Return the function (f - mean) / scale."""
        return replace(self, intercept=(self.intercept - mean) / scale, slope=self.slope / scale)

    def penalty(self) -> float:
        """Return 0: the decay of Adam is no part of the objective."""
        return 0.0

    def frozen(self) -> "NetworkPredictor":
        """Return the network without what only training needs."""
        return replace(self, moments=None)
