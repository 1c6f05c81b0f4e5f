"""Adaptive testing: ask the items that say most, stop when enough is known."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.parallel import Parallel, delayed

from seedbed.checks import check_choice, check_number
from seedbed.estimators.amortized_irt.ability import METHODS, Method, check_bounds
from seedbed.estimators.amortized_irt.answers import items_of
from seedbed.estimators.amortized_irt.course import ANSWER, REASONS, Course, Rules
from seedbed.estimators.amortized_irt.items import Floats, Items
from seedbed.estimators.amortized_irt.selection import SELECTIONS, Bank, Ints, Selection, uniforms
from seedbed.estimators.amortized_irt.sittings import SIDES, Sittings

BLOCK = 1 << 20
"""Cells of takers by items that are worked on at a time."""
FAR = 4.0
"""Prior standard deviations to which a maximum-likelihood estimate is kept by default."""


@dataclass(frozen=True)
class SimulatedTests:
    """What came of many simulated tests.

    Attributes
    ----------
    ability, ability_std, reliability : ndarray of shape (n_takers,)
        Last estimates.
    n_items : ndarray of int of shape (n_takers,)
        Lengths of the tests.
    done_reason : ndarray of str of shape (n_takers,)
        Why each test ended.
    decision : ndarray of object of shape (n_takers,)
        "above" or "below" the cut score, or None.
    item : ndarray of int of shape (n_takers, max(n_items))
        Items in the order they were asked; -1 behind a test's end.
    y, theta, se : ndarray of shape (n_takers, max(n_items))
        Answers, and estimates after each; NaN behind a test's end.
    """

    ability: Floats
    ability_std: Floats
    reliability: Floats
    n_items: Ints
    done_reason: NDArray[np.str_]
    decision: NDArray[np.object_]
    item: Ints
    y: Floats
    theta: Floats
    se: Floats


class AdaptiveTest(Sittings):
    """Test one taker with the items that say most about her, or simulate how that would go.

    The loop of Sec. 4.2: ask the open item with the largest Fisher information at the current estimate of
    ability, take down the answer, estimate again from all answers, until the standard error or the
    reliability is reached.

    Parameters
    ----------
    model : fitted estimator or Items
        The items: ``difficulty_`` and, where the model has them, ``discrimination_``, ``guessing_``,
        ``upper_`` and ``difficulty_std_``.
    selection : {"mfi", "random", "kl", "mepv", "spanning", "urry"}, default="mfi"
        What is asked next: the item of maximum Fisher information (for the Rasch model that nearest in
        difficulty); any at random; that of largest Kullback-Leibler information around the estimate; that
        which leaves the smallest expected posterior variance; fixed quantiles of the difficulties; or the
        nearest in difficulty whatever the model.
    estimator : {"map", "eap", "mle", "wle"}, default="map"
        How ability is estimated, as in :func:`estimate_ability`.
    se_target : float, optional
        Stop when the standard error is at most this.
    reliability_target : float, optional
        Stop when the reliability, 1 - se^2 / latent_scale^2, is at least this, in (0, 1); for "mle" and "wle"
        latent_scale^2 / (latent_scale^2 + se^2).
    max_items : int, optional
        Longest test.
    min_items : int, default=1
        Shortest test.
    change_target : float, optional
        Stop when none of the last three updates moved the estimate by more.
    cut_score : float, optional
        Stop when it is clear on which side of this the ability lies.
    cut_rule : {"sprt", "interval"}, default="sprt"
        When that is clear: Wald's sequential probability ratio test of cut_score + cut_margin against
        cut_score - cut_margin, or a confidence interval that leaves the cut score out.
    cut_margin : float, default=0.3
        Half width of the region of indifference of "sprt".
    cut_errors : pair of float, default=(0.05, 0.05)
        Chances of the decisions "above" and "below" being wrong ("sprt"); the first is that of the interval.
    start : float, default=0
        First estimate.
    first_item : int, optional
        Item that every test begins with.
    randomesque : int, default=1
        Draw each item from this many best ones, so that no item is asked too often.
    groups : array-like of shape (n_items,), optional
        Content group of each item.
    quotas : mapping from group to number, optional
        Integers: at most so many items of a group. Fractions that sum to 1: shares that every test keeps
        to at any length, by asking from the group that is furthest behind. Equal shares by default.
    difficulty_uncertainty : bool, default=True
        Average the curves over the errors of the difficulties.
    latent_mean : float, default=0
        Mean of ability in the population.
    latent_scale : float, optional
        Standard deviation of ability in the population; the model's, or 1.
    bounds : pair of float, optional
        Ends of the scale for estimates; by default latent_mean +- 4 latent_scale.
    random_state : int, Generator, RandomState or None
        What random choices and simulated answers depend on.

    Attributes
    ----------
    ability_, ability_std_, reliability_ : float
        Of the taker, from the answers so far.
    n_items_ : int
        Number of answers.
    done : bool
        Whether the test is over.
    done_reason_ : {"se", "reliability", "change", "cut", "length", "bank"} or None
        Why; "bank" if no item was left to ask.
    decision_ : {"above", "below"} or None
        Side of the cut score.
    trajectory_ : structured ndarray of shape (n_items_,)
        Fields ``item``, ``y``, ``theta`` and ``se``.

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    ValueError, TypeError
        If a parameter is out of range.

    References
    ----------
    Truong, Tu, Liang, Li and Koyejo, "Reliable and Efficient Amortized Model-based Evaluation", ICML 2025.
    Chang and Ying, "A global information approach to computerized adaptive testing", 1996. Kingsbury and
    Zara, "Procedures for selecting items for computerized adaptive tests", 1989.

    Examples
    --------
    >>> import numpy as np
    >>> from seedbed.estimators import AdaptiveTest, Items
    >>> test = AdaptiveTest(Items.of(np.linspace(-3, 3, 61)), se_target=0.6)
    >>> while not test.done:
    ...     item = test.ask()
    ...     test.tell(item, item < 40)  # right whenever the difficulty is below 1
    >>> test.done_reason_, test.n_items_, round(test.ability_, 2)
    ('se', 8, 0.85)
    """

    def __init__(
        self,
        model: Any,
        *,
        selection: Selection = "mfi",
        estimator: Method = "map",
        se_target: float | None = None,
        reliability_target: float | None = None,
        max_items: int | None = None,
        min_items: int = 1,
        change_target: float | None = None,
        cut_score: float | None = None,
        cut_rule: str = "sprt",
        cut_margin: float = 0.3,
        cut_errors: tuple[float, float] = (0.05, 0.05),
        start: float = 0.0,
        first_item: int | None = None,
        randomesque: int = 1,
        groups: ArrayLike | None = None,
        quotas: Mapping[Any, float] | None = None,
        difficulty_uncertainty: bool = True,
        latent_mean: float = 0.0,
        latent_scale: float | None = None,
        bounds: tuple[float, float] | None = None,
        random_state: Any = None,
    ) -> None:
        self.items_ = items_of(model)
        n_items = len(self.items_)
        check_choice("selection", selection, SELECTIONS)
        check_choice("estimator", estimator, METHODS)
        check_choice("cut_rule", cut_rule, ("sprt", "interval"))
        _check_targets(se_target, reliability_target, change_target, cut_score)
        check_number("min_items", min_items, low=1, integer=True)
        if max_items is not None:
            check_number("max_items", max_items, low=min_items, integer=True)
        check_number("cut_margin", cut_margin, low=0, closed="neither")
        for position, error in enumerate(cut_errors):
            check_number(f"cut_errors[{position}]", error, low=0, high=0.5, closed="neither")
        check_number("start", start)
        if first_item is not None:
            check_number("first_item", first_item, low=0, high=n_items - 1, integer=True)
        check_number("randomesque", randomesque, low=1, integer=True)
        check_number("latent_mean", latent_mean)
        scale = getattr(model, "latent_scale_", 1.0) if latent_scale is None else latent_scale
        check_number("latent_scale", scale, low=0, closed="neither")
        low, high = check_bounds(
            (latent_mean - FAR * scale, latent_mean + FAR * scale) if bounds is None else bounds
        )
        group, quota, by_share = _read_groups(groups, quotas, n_items)
        self._rules = Rules(
            bank=Bank(self.items_.softened() if difficulty_uncertainty else self.items_),
            selection=selection,
            estimator=estimator,
            mean=float(latent_mean),
            scale=float(scale),
            bounds=(low, high),
            start=float(np.clip(start, low, high)),
            se_target=se_target,
            reliability_target=reliability_target,
            change_target=change_target,
            cut_score=cut_score,
            cut_rule=cut_rule,
            cut_margin=float(cut_margin),
            cut_errors=(float(cut_errors[0]), float(cut_errors[1])),
            min_items=int(min_items),
            max_items=max_items,
            randomesque=int(randomesque),
            group=group,
            quota=quota,
            by_share=by_share,
            first_item=first_item,
            seed=_seed(random_state),
        )
        self.reset()

    def __repr__(self) -> str:
        """Say what it is and how far."""
        state = f"done: {self.done_reason_}" if self.done else "going on"
        return f"AdaptiveTest(selection={self._rules.selection!r}, n_items_={self.n_items_}, {state})"

    def simulate(
        self, takers: ArrayLike, *, batch_size: int = 1, n_jobs: int | None = None
    ) -> SimulatedTests:
        """Run the whole test for many takers at once; the test of this object goes on undisturbed.

        Parameters
        ----------
        takers : array-like of shape (n_takers,) or (n_takers, n_items)
            Abilities, for answers drawn from the model, or known answers: 1, 0, and NaN for items that a
            taker cannot be asked.
        batch_size : int, default=1
            Items asked at a time.
        n_jobs : int, optional
            Processes that share the takers; the results do not depend on it.

        Returns
        -------
        SimulatedTests
            Estimates, lengths and whole courses. Taker 0 meets the choices that :meth:`ask` would make.

        Raises
        ------
        ValueError
            If the takers have another shape or other values, or one has no answer at all.

        Examples
        --------
        >>> import numpy as np
        >>> from seedbed.estimators import AdaptiveTest, Items
        >>> test = AdaptiveTest(Items.of(np.linspace(-3, 3, 400)), se_target=0.3, random_state=0)
        >>> tests = test.simulate(np.linspace(-2, 2, 50))
        >>> tests.n_items.mean().round(), set(tests.done_reason.tolist())
        (np.float64(43.0), {'se'})
        """
        check_number("batch_size", batch_size, low=1, integer=True)
        given = _read_takers(takers, len(self.items_))
        size = max(1, min(BLOCK // len(self.items_), -(-len(given) // _n_processes(n_jobs))))
        parts = Parallel(n_jobs=n_jobs)(
            delayed(_simulate)(self._rules, self.items_, given[first : first + size], first, batch_size)
            for first in range(0, len(given), size)
        )
        return _joined([test for part in parts for test in part], len(given), self._rules)


class _Ended:
    """Takers whose tests ended at the same length."""

    def __init__(self, course: Course) -> None:
        end = course.n_answers
        self.takers, self.reason, self.decision = course.takers, course.reason, course.decision
        self.theta, self.std = course.theta, course.std
        self.course = tuple(part[:, :end] for part in (course.item, course.y, course.path, course.std_path))


def _simulate(rules: Rules, truth: Items, given: Floats, first: int, batch_size: int) -> list[_Ended]:
    """Run the tests of a block of takers."""
    takers = np.arange(first, first + len(given))
    available = None if given.ndim == 1 else ~np.isnan(given)
    ended: list[_Ended] = []
    waiting = [Course(rules, takers, available)]
    while waiting:
        course = waiting.pop()
        size = batch_size if rules.max_items is None else min(batch_size, rules.max_items - course.n_answers)
        picks = course.pick(size)
        found = (picks >= 0).sum(axis=1)
        for count in np.unique(found):  # one value until a bank runs dry
            rows = found == count
            part = course if rows.all() else course.keep(rows)
            if count == 0:
                part.reason[:] = REASONS.index("bank")
            else:
                items = picks[rows, :count]
                part.record(items, _respond(rules, truth, given, first, part.takers, items))
            over = part.reason > 0
            if over.any():
                ended.append(_Ended(part.keep(over)))
            if not over.all():
                waiting.append(part.keep(~over) if over.any() else part)
    return ended


def _respond(rules: Rules, truth: Items, given: Floats, first: int, takers: Ints, items: Ints) -> Floats:
    """Look the answers up, or draw them."""
    if given.ndim == 2:
        return given[(takers - first)[:, None], items]
    chosen = truth.take(items)
    logit = chosen.discrimination * (given[takers - first][:, None] - chosen.difficulty)
    chance = chosen.guessing + (chosen.upper - chosen.guessing) / (1 + np.exp(-logit))
    return (uniforms(rules.seed, ANSWER, takers[:, None], items) < chance).astype(float)


def _joined(ended: list[_Ended], n_takers: int, rules: Rules) -> SimulatedTests:
    """Put all tests into common arrays."""
    longest = max(part.course[0].shape[1] for part in ended)
    ability, std = np.empty(n_takers), np.empty(n_takers)
    n_items, reason, decision = (np.zeros(n_takers, dtype=np.int64) for _ in range(3))
    item = np.full((n_takers, longest), -1)
    y, theta, se = (np.full((n_takers, longest), np.nan) for _ in range(3))
    for part in ended:
        rows, length = part.takers, part.course[0].shape[1]
        ability[rows], std[rows], n_items[rows] = part.theta, part.std, length
        reason[rows], decision[rows] = part.reason, part.decision
        for whole, piece in zip((item, y, theta, se), part.course, strict=True):
            whole[rows, :length] = piece
    sides = np.array([SIDES[int(side)] for side in decision], dtype=object)
    return SimulatedTests(
        ability, std, rules.reliability(std), n_items, np.array(REASONS)[reason], sides, item, y, theta, se
    )


def _n_processes(n_jobs: int | None) -> int:
    return int(effective_n_jobs(n_jobs))


def _seed(random_state: Any) -> int:
    """Return 64 bits from whatever was passed; no global state is touched."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(0, 2**63 - 1, dtype=np.int64))
    if random_state is None or isinstance(random_state, np.random.Generator):
        return int(np.random.default_rng(random_state).integers(0, 2**63))
    check_number("random_state", random_state, low=0, high=2**63, closed="left", integer=True)
    return int(random_state)


def _check_targets(se: Any, reliability: Any, change: Any, cut_score: Any) -> None:
    if se is not None:
        check_number("se_target", se, low=0, closed="neither")
    if reliability is not None:
        check_number("reliability_target", reliability, low=0, high=1, closed="neither")
    if change is not None:
        check_number("change_target", change, low=0, closed="neither")
    if cut_score is not None:
        check_number("cut_score", cut_score)


def _read_takers(takers: ArrayLike, n_items: int) -> Floats:
    """Check abilities or answers."""
    given = np.asarray(takers, dtype=float)
    if given.ndim == 1 and len(given):
        if not np.isfinite(given).all():
            raise ValueError(f"takers must be finite abilities, got {given[~np.isfinite(given)][0]}")
        return given
    if given.ndim != 2 or given.shape[1] != n_items or len(given) == 0:
        raise ValueError(
            f"takers must be abilities or answers to {n_items} items, got an array of shape {given.shape}"
        )
    wrong = ~np.isnan(given) & (given != 0) & (given != 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(f"takers[{row}, {column}] must be 0, 1 or NaN, got {given[row, column]:g}")
    empty = np.isnan(given).all(axis=1)
    if empty.any():
        raise ValueError(f"takers[{np.argmax(empty)}] has no answer")
    return given


def _read_groups(
    groups: ArrayLike | None, quotas: Mapping[Any, float] | None, n_items: int
) -> tuple[Ints | None, Floats | None, bool]:
    """Number the groups, and read their shares or ceilings."""
    if groups is None:
        if quotas is not None:
            raise ValueError("quotas need groups")
        return None, None, False
    label = np.asarray(groups)
    if label.shape != (n_items,):
        raise ValueError(f"groups must have one label per item, {n_items}, got shape {label.shape}")
    names, group = np.unique(label, return_inverse=True)
    known = names.tolist()
    if quotas is None:
        return group, np.full(len(known), 1 / len(known)), True
    strange = [name for name in quotas if name not in known]
    if strange:
        raise ValueError(f"quotas must name groups among {known}, got {strange[0]!r}")
    values = list(quotas.values())
    if all(isinstance(value, (int, np.integer)) and not isinstance(value, bool) for value in values):
        for name, value in quotas.items():
            check_number(f"quotas[{name!r}]", value, low=0, integer=True)
        return group, np.array([quotas.get(name, np.inf) for name in known], dtype=float), False
    for name, value in quotas.items():
        check_number(f"quotas[{name!r}]", value, low=0, high=1)
    if abs(sum(values) - 1) > 1e-9:
        raise ValueError(f"quotas must be integers, or shares that sum to 1, got {dict(quotas)!r}")
    return group, np.array([quotas.get(name, 0.0) for name in known], dtype=float), True
