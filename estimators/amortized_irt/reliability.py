"""How reliable abilities are: those that were estimated, and those that a set of items would give."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seedbed.checks import check_choice, check_number
from seedbed.estimators.amortized_irt.answers import items_of
from seedbed.estimators.amortized_irt.items import Floats

N_NODES = 61


def empirical_reliability(ability: ArrayLike, std: ArrayLike) -> float:
    """Share of the variance of the estimates that is not error.

    var(theta) / (var(theta) + mean(se^2)); with posterior means and standard deviations this is 1 -
    mean(psd^2) / (var(eap) + mean(psd^2)).

    Parameters
    ----------
    ability : array-like of shape (n_takers,)
        Estimates.
    std : array-like of shape (n_takers,)
        Their standard errors or posterior standard deviations.

    Returns
    -------
    float
        Reliability, in [0, 1]; 0 where neither varies.

    Raises
    ------
    ValueError
        If there are fewer than two takers, the lengths differ, or a value is not finite.

    Examples
    --------
    >>> from seedbed.estimators import empirical_reliability
    >>> empirical_reliability([-1.0, 0.0, 1.0], [0.5, 0.5, 0.5])
    0.8
    """
    theta, error = _estimates(ability, std)
    return float(_reliability(theta, error))


def reliability_interval(
    ability: ArrayLike,
    std: ArrayLike,
    *,
    confidence_level: float = 0.95,
    n_bootstrap: int = 2000,
    random_state: Any = None,
) -> tuple[float, float]:
    """Bootstrap interval of :func:`empirical_reliability`, over takers.

    Parameters
    ----------
    ability, std : array-like of shape (n_takers,)
        Estimates and their standard errors.
    confidence_level : float, default=0.95
        Of the percentile interval.
    n_bootstrap : int, default=2000
        Samples of takers.
    random_state : int, Generator or None
        Source of randomness.

    Returns
    -------
    pair of float
        Low and high.

    Raises
    ------
    ValueError
        As :func:`empirical_reliability`, or if a parameter is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import reliability_interval
    >>> low, high = reliability_interval(np.linspace(-2, 2, 50), np.full(50, 0.5), random_state=0)
    >>> bool(low < 0.85 < high)
    True
    """
    check_number("confidence_level", confidence_level, low=0, high=1, closed="neither")
    check_number("n_bootstrap", n_bootstrap, low=1, integer=True)
    theta, error = _estimates(ability, std)
    rng = np.random.default_rng(random_state)
    drawn = [rng.integers(0, len(theta), len(theta)) for _ in range(n_bootstrap)]
    values = [_reliability(theta[rows], error[rows]) for rows in drawn]
    low, high = np.quantile(values, [(1 - confidence_level) / 2, (1 + confidence_level) / 2])
    return float(low), float(high)


def marginal_reliability(
    items: Any, *, latent_mean: float = 0.0, latent_scale: float | None = None, kind: str = "eap"
) -> float:
    """Reliability that a set of items has in a population N(latent_mean, latent_scale^2).

    Parameters
    ----------
    items : Items or fitted estimator
        The items; errors of their difficulties are averaged over.
    latent_mean : float, default=0
        Mean of ability.
    latent_scale : float, optional
        Standard deviation of ability; the estimator's, or 1.
    kind : {"eap", "mle"}, default="eap"
        1 - E[1 / (I(theta) + 1 / s^2)] / s^2, or s^2 / (s^2 + E[1 / I(theta)]).

    Returns
    -------
    float
        Reliability, in (0, 1).

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import Items, marginal_reliability
    >>> [round(marginal_reliability(Items.of(np.zeros(n))), 3) for n in (10, 100, 1000)]
    [0.664, 0.95, 0.995]
    """
    check_choice("kind", kind, ("eap", "mle"))
    check_number("latent_mean", latent_mean)
    scale = getattr(items, "latent_scale_", 1.0) if latent_scale is None else latent_scale
    check_number("latent_scale", scale, low=0, closed="neither")
    nodes, weights = np.polynomial.hermite_e.hermegauss(N_NODES)
    weights = weights / weights.sum()
    information = items_of(items).softened().information(latent_mean + scale * nodes).sum(axis=1)
    if kind == "eap":
        return float(1 - (weights / (information + scale**-2)).sum() / scale**2)
    return float(scale**2 / (scale**2 + (weights / information).sum()))


def _reliability(theta: Floats, error: Floats) -> float:
    spread, noise = np.var(theta, ddof=1), np.mean(error**2)
    return float(spread / (spread + noise)) if spread + noise > 0 else 0.0


def _estimates(ability: ArrayLike, std: ArrayLike) -> tuple[Floats, Floats]:
    theta, error = np.asarray(ability, dtype=float), np.asarray(std, dtype=float)
    if theta.ndim != 1 or theta.shape != error.shape or len(theta) < 2:
        raise ValueError(
            "ability and std must be lists of one length, of two takers at least, got shapes "
            f"{theta.shape} and {error.shape}"
        )
    for name, part in (("ability", theta), ("std", error)):
        if not np.isfinite(part).all():
            wrong = int(np.argmin(np.isfinite(part)))
            raise ValueError(
                f"{name}[{wrong}] must be finite, got {part[wrong]}: pass bounds to the estimate"
            )
    if (error < 0).any():
        raise ValueError(f"std[{np.argmax(error < 0)}] must not be negative, got {error[error < 0][0]}")
    return theta, error
