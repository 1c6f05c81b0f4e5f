"""Bandits to find change points on: environments that are queried, with the truth at hand."""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from seedbed.checks import check_choice, check_number, missing_extra

Noise = Literal["gaussian", "bernoulli", "uniform"]
NOISES = ("gaussian", "bernoulli", "uniform")


def check_noise(noise: Noise, means: Any) -> None:
    """Raise unless the means can have noise of this law.

    Parameters
    ----------
    noise : {"gaussian", "bernoulli", "uniform"}
        Law of the rewards.
    means : ndarray
        Means.

    Raises
    ------
    ValueError
        If the law is unknown, or Bernoulli's means are no probabilities.
    """
    check_choice("noise", noise, NOISES)
    if noise == "bernoulli" and ((means < 0) | (means > 1)).any():
        raise ValueError("levels must be in [0, 1] with noise='bernoulli'")


def draw_rewards(rng: np.random.Generator, means: Any, sigma: Any, noise: Noise) -> Any:
    """Draw one reward per mean.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of randomness.
    means : ndarray
        Means.
    sigma : float or ndarray
        Standard deviations; "bernoulli" has its own.
    noise : {"gaussian", "bernoulli", "uniform"}
        Law of the rewards.

    Returns
    -------
    ndarray
        Of the shape of ``means``.
    """
    if noise == "gaussian":
        return means + sigma * rng.standard_normal(means.shape)
    if noise == "bernoulli":
        return (rng.random(means.shape) < means).astype(float)
    return means + sigma * np.sqrt(3.0) * rng.uniform(-1.0, 1.0, means.shape)


class PiecewiseConstantBandit:
    """A step function over ordered points that is seen through noise.

    Parameters
    ----------
    levels : array-like of shape (n_changes + 1,)
        Level of each segment, neighbours different.
    change_points : array-like of int, shape (n_changes,)
        Boundaries in order: b lies between points b and b + 1.
    n_arms : int
        Number of points; they are 0, 1, ..., n_arms - 1.
    sigma : float
        Standard deviation of the noise; "bernoulli" has its own.
    noise : {"gaussian", "bernoulli", "uniform"}
        Its law; "bernoulli" gives rewards 0 and 1 with the levels as probabilities.
    random_state : int, Generator or None
        Source of the noise.

    Attributes
    ----------
    domain : ndarray of shape (n_arms,)
        The points.
    means : ndarray of shape (n_arms,)
        True mean of each.
    change_points : ndarray of int
        True boundaries.
    n_queries : int
        Rewards drawn so far.

    Examples
    --------
    >>> from seedbed.datasets import PiecewiseConstantBandit
    >>> bandit = PiecewiseConstantBandit([0, 1], [4], n_arms=10, random_state=0)
    >>> bandit([[3.0], [7.0]]).shape, bandit.n_queries
    ((2,), 2)
    """

    def __init__(
        self,
        levels: ArrayLike,
        change_points: ArrayLike,
        n_arms: int,
        sigma: float = 1.0,
        noise: Noise = "gaussian",
        random_state: Any = None,
    ) -> None:
        check_number("n_arms", n_arms, low=2, integer=True)
        check_number("sigma", sigma, low=0, closed="neither")
        check_choice("noise", noise, NOISES)
        steps, places = np.asarray(levels, dtype=float), np.asarray(change_points)
        if places.ndim != 1 or steps.shape != (len(places) + 1,) or not np.isfinite(steps).all():
            shapes = f"{steps.shape} and {places.shape}"
            raise ValueError(f"levels must have one finite entry more than change_points, got {shapes}")
        if len(places) and (places.dtype.kind not in "iu" or places[0] < 0 or places[-1] > n_arms - 2):
            raise ValueError(f"change_points must be integers from 0 to {n_arms - 2}, got {places.tolist()}")
        if (np.diff(places) <= 0).any() or (np.diff(steps) == 0).any():
            raise ValueError("change_points must increase, and levels beside one differ")
        check_noise(noise, steps)
        self.change_points = places.astype(np.int64)
        self.domain = np.arange(n_arms, dtype=float)
        self.means = np.repeat(steps, np.diff([0, *(self.change_points + 1), n_arms]))
        self.sigma = sigma
        self.noise = noise
        self.n_queries = 0
        self._rng = np.random.default_rng(random_state)

    def __call__(self, points: ArrayLike) -> Any:
        """Query points.

        Parameters
        ----------
        points : array-like of shape (b,) or (b, 1)
            Points of the domain.

        Returns
        -------
        ndarray of shape (b,)
            Rewards.

        Raises
        ------
        ValueError
            If a point is not in the domain.
        """
        asked = np.asarray(points, dtype=float).reshape(-1)
        arms = np.searchsorted(self.domain, asked).clip(0, len(self.domain) - 1)
        if (self.domain[arms] != asked).any():
            raise ValueError(f"points must be in the domain, got {asked[self.domain[arms] != asked][0]!r}")
        self.n_queries += len(arms)
        return self._draw(arms)

    def _draw(self, arms: Any) -> Any:
        return draw_rewards(self._rng, self.means[arms], self.sigma, self.noise)


def make_piecewise_constant_bandit(
    n_change_points: int = 1,
    *,
    n_arms: int = 20,
    jump: float = 1.0,
    levels: ArrayLike | None = None,
    sigma: float = 1.0,
    noise: Noise = "gaussian",
    random_state: Any = None,
) -> PiecewiseConstantBandit:
    """Make a bandit with changes at even distances, half of one from either end.

    Parameters
    ----------
    n_change_points : int
        Number of changes N.
    n_arms : int
        Number of points K; change i of N comes after point ``(2 i + 1) K // (2 N) - 1``, i = 0, 1, ...
    jump : float
        Without ``levels``: these are 0, jump, 0, jump, ...
    levels : array-like of shape (n_change_points + 1,), optional
        Level of each segment, neighbours different.
    sigma : float
        Standard deviation of the noise.
    noise : {"gaussian", "bernoulli", "uniform"}
        Its law.
    random_state : int, Generator or None
        Source of the noise.

    Returns
    -------
    PiecewiseConstantBandit
        The truth is in its ``change_points`` and ``means``.

    Raises
    ------
    ValueError
        If a number is not allowed, or the points are too few for so many changes at these places.

    Examples
    --------
    >>> from seedbed.datasets import make_piecewise_constant_bandit
    >>> make_piecewise_constant_bandit(2, n_arms=12, random_state=0).change_points
    array([2, 8])
    >>> make_piecewise_constant_bandit(3, n_arms=6, levels=[0, 1, 0, 0.5]).means.tolist()
    [0.0, 1.0, 1.0, 0.0, 0.0, 0.5]
    """
    check_number("n_arms", n_arms, low=2, integer=True)
    check_number("n_change_points", n_change_points, low=1, high=max(n_arms // 2, 1), integer=True)
    check_number("jump", jump)
    if levels is None:
        if jump == 0:
            raise ValueError("jump must not be 0")
        levels = jump * (np.arange(n_change_points + 1) % 2)
    places = ((2 * np.arange(n_change_points) + 1) * n_arms) // (2 * n_change_points) - 1
    return PiecewiseConstantBandit(levels, places, n_arms, sigma, noise, random_state)


class _Replay(PiecewiseConstantBandit):
    """Levels of real data, and their residuals drawn with replacement as noise."""

    def __init__(self, domain: Any, series: Any, change: int, random_state: Any) -> None:
        levels = [series[: change + 1].mean(), series[change + 1 :].mean()]
        fitted = np.repeat(levels, [change + 1, len(series) - change - 1])
        sigma = float(np.sqrt(((series - fitted) ** 2).sum() / (len(series) - 2)))
        super().__init__(levels, [change], len(series), sigma, "gaussian", random_state)
        self.domain, self.series, self.residuals = domain, series, series - fitted

    def _draw(self, arms: Any) -> Any:
        return self.means[arms] + self._rng.choice(self.residuals, len(arms))


def load_nile_bandit(*, random_state: Any = None) -> PiecewiseConstantBandit:
    """Load the annual flow of the Nile at Aswan, 1871 to 1970, as a bandit.

    A query of a year returns the mean flow of its segment plus a residual of the series drawn with
    replacement: flow can be had once a year only, so this is half real. The change, by least squares, is
    between 1898 and 1899, when the first dam at Aswan was begun.

    Parameters
    ----------
    random_state : int, Generator or None
        Source of the residuals drawn.

    Returns
    -------
    PiecewiseConstantBandit
        ``domain`` are years; also ``series`` (100,), the flow in 10^8 m^3, ``residuals`` (100,) and
        ``sigma``, their standard deviation.

    Raises
    ------
    ImportError
        If statsmodels is missing.

    Examples
    --------
    >>> from seedbed.datasets import load_nile_bandit
    >>> nile = load_nile_bandit(random_state=0)
    >>> nile.domain[nile.change_points], round(nile.sigma, 2)
    (array([1898.]), 127.67)
    """
    try:
        from statsmodels.datasets import nile
    except ImportError as error:
        raise missing_extra("statsmodels", "data", "load_nile_bandit") from error
    frame = nile.load_pandas().data
    years, flow = frame["year"].to_numpy(dtype=float), frame["volume"].to_numpy(dtype=float)
    return _Replay(years, flow, int(np.flatnonzero(years == 1898)[0]), random_state)
