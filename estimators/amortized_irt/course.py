"""The course of an adaptive test, of one taker or of many at once."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from seedbed.estimators.amortized_irt.ability import Method, estimate
from seedbed.estimators.amortized_irt.answers import Answers
from seedbed.estimators.amortized_irt.items import Floats
from seedbed.estimators.amortized_irt.selection import (
    LARGE,
    Bank,
    Ints,
    Selection,
    choose,
    posterior,
    uniforms,
)

REASONS = ("", "se", "reliability", "change", "cut", "length", "bank")
"""Why a test ended; nothing while it goes on."""
STILL = 3
"""Updates in a row that must not move the estimate for the rule "change"."""
PICK, ORDER, ANSWER = range(3)
"""Streams of random numbers: draws among the best items, orders of random tests, simulated answers."""


@dataclass(frozen=True)
class Rules:
    """Everything that a test's course depends on except the answers.

    The attributes are those of :class:`~seedbed.estimators.AdaptiveTest`, checked and with their defaults
    filled in; ``group`` numbers the items' groups, ``quota`` holds shares or ceilings of the groups.
    """

    bank: Bank
    selection: Selection
    estimator: Method
    mean: float
    scale: float
    bounds: tuple[float, float]
    start: float
    se_target: float | None
    reliability_target: float | None
    change_target: float | None
    cut_score: float | None
    cut_rule: str
    cut_margin: float
    cut_errors: tuple[float, float]
    min_items: int
    max_items: int | None
    randomesque: int
    group: Ints | None
    quota: Floats | None
    by_share: bool
    first_item: int | None
    seed: int

    @cached_property
    def spanning(self) -> Floats:
        """Minus the rank of each item in the fixed order."""
        return self._ranks(self.bank.spanning(self.max_items)[None])

    def shuffled(self, takers: Ints) -> Floats:
        """Minus the rank of each item in each taker's random order."""
        keys = uniforms(self.seed, ORDER, takers[:, None], np.arange(len(self.bank.items)))
        return self._ranks(np.argsort(keys, axis=1, kind="stable"))

    @staticmethod
    def _ranks(order: Ints) -> Floats:
        ranks = np.empty(order.shape)
        np.put_along_axis(ranks, order, -np.arange(order.shape[1], dtype=float)[None], axis=1)
        return ranks

    def reliability(self, std: Floats) -> Floats:
        """Share of the variance of ability that an estimate with this standard error explains."""
        if self.estimator in ("eap", "map"):
            return 1 - (std / self.scale) ** 2
        return 1 / (1 + (std / self.scale) ** 2)


class Course:
    """Takers who have given equally many answers to the items of one bank.

    Parameters
    ----------
    rules : Rules
        The test.
    takers : ndarray of int of shape (n_takers,)
        Their numbers, which say what random numbers they get.
    available : ndarray of bool of shape (n_takers, n_items), optional
        Items that can be asked.
    """

    def __init__(self, rules: Rules, takers: Ints, available: NDArray[np.bool_] | None = None) -> None:
        n_takers, n_items = len(takers), len(rules.bank.items)
        self.rules = rules
        self.takers = takers
        self.open = np.ones((n_takers, n_items), dtype=bool) if available is None else available.copy()
        self.hidden = n_items - self.open.sum(axis=1)
        self.picked = np.zeros(n_takers, dtype=np.int64)
        self.n_answers = 0
        self.item = np.zeros((n_takers, 0), dtype=np.int64)
        self.y, self.path, self.std_path = (np.zeros((n_takers, 0)) for _ in range(3))
        self.theta = np.full(n_takers, rules.start)
        self.std = np.full(n_takers, rules.scale if rules.estimator in ("eap", "map") else np.inf)
        self.still = np.zeros(n_takers, dtype=np.int64)
        self.reason = np.zeros(n_takers, dtype=np.int64)
        self.decision = np.zeros(n_takers, dtype=np.int64)
        self.random_rank = rules.shuffled(takers) if rules.selection == "random" else None
        self.count: Ints | None = None
        if rules.group is not None and rules.quota is not None:
            self.count = np.zeros((n_takers, len(rules.quota)), dtype=np.int64)

    def keep(self, rows: NDArray[np.bool_]) -> "Course":
        """Go on with some of the takers."""
        rest = object.__new__(Course)
        rest.__dict__ = {
            name: value[rows] if isinstance(value, np.ndarray) else value
            for name, value in self.__dict__.items()
        }
        return rest

    @property
    def answers(self) -> Answers:
        """What the takers answered so far."""
        used = self.item[:, : self.n_answers]
        return Answers(self.y[:, : self.n_answers], self.rules.bank.items.take(used))

    def pick(self, n_items: int = 1) -> Ints:
        """Pick the next items of every taker.

        Parameters
        ----------
        n_items : int
            How many.

        Returns
        -------
        ndarray of int of shape (n_takers, n_items)
            Items; -1 where there is none left to ask.
        """
        if self.rules.selection == "mfi" and n_items > 1:
            return self._pick_spread(n_items)
        chosen = np.full((len(self.takers), n_items), -1)
        for column in range(n_items):
            value, item = self._values()
            self._take(chosen, column, value, item)
        return chosen

    def _take(self, chosen: Ints, column: int, value: Floats, item: Ints | None) -> None:
        """Choose among values, and close what was chosen."""
        rules = self.rules
        uniform = uniforms(rules.seed, PICK, self.takers, self.picked)
        found = choose(value, item, rules.randomesque, uniform)
        if rules.first_item is not None:
            may = (self.picked == 0) & self.open[:, rules.first_item]
            found = np.where(may, rules.first_item, found)
        chosen[:, column] = found
        self.close(np.flatnonzero(found >= 0), found[found >= 0])

    def close(self, rows: Ints, items: Ints) -> None:
        """Mark items as asked."""
        self.open[rows, items] = False
        np.add.at(self.picked, rows, 1)
        if self.count is not None and self.rules.group is not None:
            np.add.at(self.count, (rows, self.rules.group[items]), 1)

    def _allowed(self) -> NDArray[np.bool_]:
        """Items that may be asked: open ones of groups whose turn it is."""
        rules = self.rules
        if self.count is None or rules.group is None or rules.quota is None:
            return self.open
        if not rules.by_share:
            return self.open & (self.count < rules.quota)[:, rules.group]
        members = np.arange(len(rules.quota))[:, None] == rules.group
        left = self.open @ members.T.astype(np.int64) > 0
        short = rules.quota * (self.picked[:, None] + 1) - self.count
        turn = np.where(left, short, -np.inf).argmax(axis=1)
        return self.open & (rules.group == turn[:, None])

    def may_ask(self) -> NDArray[np.bool_]:
        """Whether each taker has an item left that may be asked."""
        if self.count is None:
            return np.asarray(self.open.any(axis=1))
        return np.asarray(self._allowed().any(axis=1))

    def _values(self) -> tuple[Floats, Ints | None]:
        """What the rule maximises, -inf for items that must not be asked, and of which items."""
        rules, bank = self.rules, self.rules.bank
        selection = rules.selection
        if selection == "urry" or (selection == "mfi" and bank.is_rasch):
            return self._nearest()
        allowed = self._allowed()
        if selection == "mfi":
            return self._most_informative(allowed)
        if selection == "random":
            assert self.random_rank is not None
            value = self.random_rank
        elif selection == "spanning":
            value = rules.spanning
        elif selection == "kl":
            value = bank.kullback_leibler(self.theta, self.n_answers)
        else:
            value = -bank.expected_variance(*posterior(self.answers, self.theta, rules.mean, rules.scale))
        return np.where(allowed, value, -np.inf), None

    def _nearest(self) -> tuple[Floats, Ints | None]:
        """Find the nearest difficulties; the easier of two that are equally near comes first."""
        rules, bank = self.rules, self.rules.bank
        width = len(bank.items)
        allowed = self._allowed()
        if self.count is None:  # no nearer item can hide behind more items than are closed
            width = int((self.hidden + self.picked).max(initial=0)) + rules.randomesque
        distance, item = bank.nearest(self.theta, width)
        ok = np.take_along_axis(allowed, item, axis=1)
        return np.where(ok, distance, -np.inf), item

    def _most_informative(self, allowed: NDArray[np.bool_]) -> tuple[Floats, Ints | None]:
        rules, bank = self.rules, self.rules.bank
        if len(self.takers) == 1 and len(bank.items) > LARGE:
            few = bank.best_single(float(self.theta[0]), allowed[0], rules.randomesque)
            value = bank.items.take(few).information(self.theta)
            return np.where(allowed[:, few], value, -np.inf), few[None]
        return np.where(allowed, bank.items.information(self.theta), -np.inf), None

    def _pick_spread(self, n_items: int) -> Ints:
        """Pick items one by one so that E log(information of all so far) is largest: D-optimal on average.

        The expectation is over the posterior; a batch of items that are best at one ability would repeat
        itself where ability is still uncertain.
        """
        rules, bank = self.rules, self.rules.bank
        chosen = np.full((len(self.takers), n_items), -1)
        answers = self.answers
        nodes, mass = posterior(answers, self.theta, rules.mean, rules.scale)
        per_item = bank.information_at(nodes)
        known = np.array([answers.slopes(node).information for node in nodes.T]).T + rules.scale**-2
        rows = np.arange(len(self.takers))
        for column in range(n_items):
            value = np.zeros(self.open.shape)
            for node in range(nodes.shape[1]):
                value += mass[:, node, None] * np.log(known[:, node, None] + per_item[:, node])
            self._take(chosen, column, np.where(self._allowed(), value, -np.inf), None)
            found = chosen[:, column]
            known += np.where((found >= 0)[:, None], per_item[rows, :, np.maximum(found, 0)], 0.0)
        return chosen

    def record(self, items: Ints, y: Floats) -> None:
        """Take down answers and see whether the test ends.

        Parameters
        ----------
        items : ndarray of int of shape (n_takers, k)
            Items, closed before.
        y : ndarray of shape (n_takers, k)
            1 for right, 0 for wrong.
        """
        first, end = self.n_answers, self.n_answers + items.shape[1]
        size = self.item.shape[1]
        if end > size:
            more = ((0, 0), (0, max(16, end, 2 * size) - size))
            for name in ("item", "y", "path", "std_path"):
                setattr(self, name, np.pad(getattr(self, name), more))
        self.item[:, first:end], self.y[:, first:end] = items, y
        self.n_answers = end
        self.update()
        self.path[:, first:end], self.std_path[:, first:end] = self.theta[:, None], self.std[:, None]

    def update(self) -> None:
        """Estimate from all answers, and see whether the test ends."""
        rules = self.rules
        before = self.theta
        means = np.full(len(before), rules.mean)
        found = estimate(self.answers, rules.estimator, means, rules.scale, rules.bounds, start=before)
        self.theta, self.std = found.ability, found.std
        if rules.change_target is not None:
            moved = np.abs(self.theta - before) > rules.change_target
            self.still = np.where(moved, 0, self.still + 1)
        self.stop()

    def stop(self) -> None:
        """Say of each taker whether the test ends, why, and on which side of the cut score."""
        rules = self.rules
        nothing = np.zeros(len(self.theta), dtype=bool)
        self.decision = self._decide() if rules.cut_score is not None else self.decision
        tests = (
            nothing if rules.se_target is None else self.std <= rules.se_target,
            nothing
            if rules.reliability_target is None
            else rules.reliability(self.std) >= rules.reliability_target,
            nothing if rules.change_target is None else self.still >= STILL,
            self.decision != 0,
        )
        early = self.n_answers < rules.min_items
        self.reason = np.zeros(len(self.theta), dtype=np.int64)
        if rules.max_items is not None and self.n_answers >= rules.max_items:
            self.reason[:] = REASONS.index("length")
        elif early:
            return
        for number in range(len(tests), 0, -1):  # the first in the list has the last word
            self.reason[tests[number - 1]] = number

    def _decide(self) -> Ints:
        """1 above the cut score, -1 below, 0 while that is open."""
        rules = self.rules
        assert rules.cut_score is not None
        alpha, beta = rules.cut_errors
        if rules.cut_rule == "interval":
            reach = norm.ppf(1 - alpha / 2) * self.std
            above, below = self.theta - reach > rules.cut_score, self.theta + reach < rules.cut_score
        else:
            sides = [np.full(len(self.theta), rules.cut_score + side * rules.cut_margin) for side in (1, -1)]
            ratio = self.answers.log_likelihood(sides[0]) - self.answers.log_likelihood(sides[1])
            above, below = ratio >= np.log((1 - beta) / alpha), ratio <= np.log(beta / (1 - alpha))
        return above.astype(np.int64) - below
