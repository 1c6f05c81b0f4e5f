"""One taker's sitting: ask, tell, and plain values to go on from later."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seedbed.checks import check_number
from seedbed.estimators.amortized_irt.course import REASONS, Course, Rules
from seedbed.estimators.amortized_irt.items import Items
from seedbed.estimators.amortized_irt.selection import Ints

VERSION = 1
ANSWER_FIELDS = [("item", np.int64), ("y", np.int8), ("theta", np.float64), ("se", np.float64)]
SIDES = {1: "above", -1: "below", 0: None}


class Sittings:
    """Asking and telling of :class:`~seedbed.estimators.AdaptiveTest`."""

    items_: Items
    _rules: Rules
    _course: Course
    _pending: list[int]
    _told: list[list[list[int]]]
    _known: set[int]

    def reset(self) -> Self:
        """Begin anew, with the same random choices.

        Returns
        -------
        self
            Without answers.
        """
        self._course = Course(self._rules, np.zeros(1, dtype=np.int64))
        self._pending = []
        self._told = []
        self._known = set()
        return self

    @property
    def ability_(self) -> float:
        """Estimate from the answers so far."""
        return float(self._course.theta[0])

    @property
    def ability_std_(self) -> float:
        """Standard error of the estimate."""
        return float(self._course.std[0])

    @property
    def reliability_(self) -> float:
        """Reliability of the estimate."""
        return float(self._rules.reliability(self._course.std)[0])

    @property
    def n_items_(self) -> int:
        """Number of answers so far."""
        return self._course.n_answers

    @property
    def done_reason_(self) -> str | None:
        """Why the test is over, None while it is not."""
        return REASONS[self._course.reason[0]] or None

    @property
    def done(self) -> bool:
        """Whether the test is over."""
        return bool(self._course.reason[0] > 0)

    @property
    def decision_(self) -> str | None:
        """Side of the cut score, None while that is open."""
        return SIDES[int(self._course.decision[0])]

    @property
    def trajectory_(self) -> NDArray[Any]:
        """Items, answers, and the estimates after them."""
        course, end = self._course, self._course.n_answers
        found = np.empty(end, dtype=ANSWER_FIELDS)
        for name, part in zip(
            ("item", "y", "theta", "se"), (course.item, course.y, course.path, course.std_path), strict=True
        ):
            found[name] = part[0, :end]
        return found

    def ask(self, n_items: int = 1) -> Ints:
        """Say what to ask next.

        Parameters
        ----------
        n_items : int, default=1
            How many items. For "mfi" a batch is chosen item by item so that the expected logarithm of the
            information of all of them together is largest, not by repeating the best.

        Returns
        -------
        ndarray of int
            Items asked before and not told yet come first, so that asking again gives the same. Fewer than
            ``n_items``, or none, where the test is over or its length or bank ends.

        Raises
        ------
        ValueError
            If ``n_items`` is no positive integer.
        """
        check_number("n_items", n_items, low=1, integer=True)
        if self.done:
            return np.zeros(0, dtype=np.int64)
        room = n_items
        if self._rules.max_items is not None:
            room = min(n_items, self._rules.max_items - self.n_items_)
        more = room - len(self._pending)
        if more > 0:
            picks = self._course.pick(more)[0]
            self._pending += picks[picks >= 0].tolist()
        return np.array(self._pending[:room], dtype=np.int64)

    def tell(self, items: ArrayLike, responses: ArrayLike) -> None:
        """Take down answers; ability is estimated once for all of them.

        Parameters
        ----------
        items : int or array-like of int
            Items. They need not have been asked for: known answers may be told at any time.
        responses : bool, int or array-like
            1 or True for right, 0 or False for wrong, one per item.

        Raises
        ------
        ValueError
            If an item is unknown, told before or given twice, an answer is neither right nor wrong, or the
            numbers of items and answers differ. Nothing is taken down then.
        """
        which, right = self._read_answers(items, responses)
        self._take_down(which, right)

    def run(self, respond: Callable[[Ints], ArrayLike], *, batch_size: int = 1) -> Self:
        """Ask and tell until the test is over.

        Parameters
        ----------
        respond : callable
            Takes an array of items, returns their answers.
        batch_size : int, default=1
            Items asked at a time.

        Returns
        -------
        self
            With the test over.

        Raises
        ------
        ValueError
            If the answers are not as :meth:`tell` wants them.
        """
        while not self.done:
            items = self.ask(batch_size)
            self.tell(items, respond(items))
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return the session in plain values.

        Returns
        -------
        dict
            Answers and open questions, for :meth:`load_state_dict`; it can be written as JSON.
        """
        return {
            "version": VERSION,
            "test": self._fingerprint(),
            "seed": self._rules.seed,
            "told": [[list(items), list(answers)] for items, answers in self._told],
            "pending": list(self._pending),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Take up a session: it goes on exactly as it would have.

        All estimates are made again from the answers; nothing but these is believed.

        Parameters
        ----------
        state : mapping
            From :meth:`state_dict` of a test with the same items and parameters.

        Returns
        -------
        self
            The test.

        Raises
        ------
        ValueError
            If the state is of another version or another test, or damaged. This object is left as it was.
        """
        if not isinstance(state, Mapping) or state.get("version") != VERSION:
            raise ValueError(f"state must be a mapping of version {VERSION}, made by state_dict")
        if state.get("test") != self._fingerprint():
            raise ValueError("state was made by a test with other items or parameters")
        again = object.__new__(type(self))
        again.items_ = self.items_
        try:
            seed, told, pending = state["seed"], state["told"], state["pending"]
            check_number("seed", seed, low=0, high=2**63, closed="left", integer=True)
            again._rules = replace(self._rules, seed=int(seed))
            again.reset()
            for items, answers in told:
                again._take_down(*again._read_answers(items, answers))
            if pending:
                open_, _ = again._read_answers(pending, [0] * len(pending))
                again._course.close(np.zeros(len(open_), dtype=np.int64), open_)
                again._pending = open_.tolist()
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"state is damaged: {error}") from error
        again._see_end()
        self.__dict__.update(again.__dict__)
        return self

    def _read_answers(self, items: ArrayLike, responses: ArrayLike) -> tuple[Ints, Ints]:
        """Check items and answers before anything changes."""
        which, right = np.atleast_1d(np.asarray(items)), np.atleast_1d(np.asarray(responses))
        if which.ndim != 1 or which.shape != right.shape or len(which) == 0:
            raise ValueError(f"items and responses must go together, got shapes {which.shape}, {right.shape}")
        if which.dtype.kind not in "iu":
            raise ValueError(f"items must be integers, got {which.dtype} ({items!r})")
        unknown = (which < 0) | (which >= len(self.items_))
        if unknown.any():
            raise ValueError(f"items must be in [0, {len(self.items_) - 1}], got {which[unknown][0]}")
        if right.dtype.kind not in "biuf" or not ((right == 0) | (right == 1)).all():
            raise ValueError(f"responses must be 0 or 1, got {responses!r}")
        given = which.tolist()
        again = [item for item in given if item in self._known]
        if again:
            raise ValueError(f"item {again[0]} was told before")
        if len(set(given)) < len(given):
            raise ValueError(f"items must not repeat, got {items!r}")
        return which.astype(np.int64), right.astype(np.int64)

    def _take_down(self, items: Ints, answers: Ints) -> None:
        course = self._course
        new = items[course.open[0, items]]
        course.close(np.zeros(len(new), dtype=np.int64), new)
        self._known.update(items.tolist())
        self._pending = [item for item in self._pending if item not in self._known]
        course.record(items[None], answers[None].astype(float))
        self._told.append([items.tolist(), answers.tolist()])
        self._see_end()

    def _see_end(self) -> None:
        """End the test if no item is left to ask."""
        course = self._course
        if course.reason[0] == 0 and not self._pending and not course.may_ask()[0]:
            course.reason[0] = REASONS.index("bank")

    def _fingerprint(self) -> str:
        """Hash of the items and of all that the course of a test depends on, but for the seed."""
        found = hashlib.sha256()
        for part in fields(Items):
            found.update(np.ascontiguousarray(getattr(self._rules.bank.items, part.name)).tobytes())
        plain = {
            part.name: getattr(self._rules, part.name)
            for part in fields(Rules)
            if part.name not in ("bank", "seed")
        }
        found.update(json.dumps(plain, sort_keys=True, default=np.ndarray.tolist).encode())
        return found.hexdigest()
