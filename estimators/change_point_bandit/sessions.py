"""A session as plain values and as a JSON file. What is read is checked, and nothing in it is executed."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from seedbed.estimators.change_point_bandit.single import Single
from seedbed.estimators.change_point_bandit.thresholds import Floats

VERSION = 2
LARGEST = 1e100
"""Rewards beyond this size would overflow when squared."""

# What does not change the course of a session, or only when it ends.
FREE = ("verbose", "max_evals", "batch_size")


class Sessions:
    """Saving and loading of :class:`~seedbed.estimators.ChangePointBandit`."""

    domain_: Floats
    objective: str
    _engine: Single
    _log: list[tuple[int, float, int]]
    _curve: list[tuple[int, float]]
    _pending: Floats
    _n_pending: int
    _round: int

    def state_dict(self) -> dict[str, Any]:
        """Return the session in plain values.

        Returns
        -------
        dict
            What :meth:`load_state_dict` takes; it survives JSON to the last digit.

        Raises
        ------
        NotFittedError
            Before ``start``.
        """
        check_is_fitted(self, "domain_")
        arms, rewards, rounds = map(list, zip(*self._log, strict=True)) if self._log else ([], [], [])
        fitted = self._engine.fitted
        return {
            "version": VERSION,
            "parameters": self._fingerprint(),
            "domain": self.domain_.tolist(),
            "arms": arms,
            "rewards": rewards,
            "rounds": rounds,
            "pending": self._pending.tolist(),
            "tracked": self._engine.tracked[0].tolist(),
            "fitted": None if fitted is None else [fitted[0], fitted[1].tolist()],
            "curve": [list(point) for point in self._curve],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Take up a session: it goes on exactly as it would have.

        Parameters
        ----------
        state : mapping
            From :meth:`state_dict` of an estimator with the same parameters.

        Returns
        -------
        self
            The estimator.

        Raises
        ------
        ValueError
            If the state is of another version, of other parameters, or damaged.
        """
        this: Any = self
        this._validate_params()
        if not isinstance(state, Mapping) or state.get("version") != VERSION:
            raise ValueError(f"state must have version {VERSION}, made by state_dict or save")
        if state.get("parameters") != self._fingerprint():
            raise ValueError("state was made with other parameters than this estimator has")
        try:
            parts = _Parts(state)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"state is damaged: {error}") from error
        if not parts.fit_together(this.n_change_points):
            raise ValueError("state is damaged: its parts do not fit together")
        this._begin(parts.domain)
        edges = np.flatnonzero(np.diff(parts.rounds, prepend=-1, append=np.iinfo(np.int64).max))
        for begin, end in pairwise(edges):
            self._round = int(parts.rounds[begin])
            this._record(parts.arms[begin:end], parts.rewards[begin:end])
            if self.objective == "all":
                self._engine.stopped()  # what was shown at each round stays shown
        self._pending[:], self._n_pending = parts.pending, int(parts.pending.sum())
        self._engine.tracked[0] = parts.tracked
        self._engine.fitted = parts.fitted
        this._conclude()
        self._curve = [(int(t), float(value)) for t, value in parts.curve]
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the session to a JSON file, whole or not at all.

        Parameters
        ----------
        path : path-like
            Where.
        """
        target = Path(path)
        text = json.dumps(self.state_dict())
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def load(self, path: str | os.PathLike[str]) -> Self:
        """Take up a session from a file.

        Parameters
        ----------
        path : path-like
            Written by :meth:`save`.

        Returns
        -------
        self
            The estimator.

        Raises
        ------
        ValueError
            If it is no such file, or was made with other parameters.
        """
        try:
            state = json.loads(Path(path).read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is no saved session: {error}") from error
        return self.load_state_dict(state)

    def _fingerprint(self) -> str:
        """Hash of what the course of a session depends on."""
        this: Any = self
        parameters = {k: v for k, v in this.get_params(deep=False).items() if k not in FREE}
        sigma = parameters["sigma"]
        parameters["sigma"] = float(sigma) if isinstance(sigma, Real) else np.asarray(sigma, float).tolist()
        if callable(parameters["threshold"]):
            parameters["threshold"] = getattr(parameters["threshold"], "__qualname__", "callable")
        text = json.dumps(parameters, sort_keys=True, default=float)
        return hashlib.sha256(text.encode()).hexdigest()


class _Parts:
    """The arrays of a state."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        def numbers(name: str, kind: Any = float) -> Any:
            return np.array(state[name], dtype=kind)

        self.domain, self.rewards = numbers("domain"), numbers("rewards")
        self.arms, self.rounds = numbers("arms", np.int64), numbers("rounds", np.int64)
        self.pending, self.tracked = numbers("pending"), numbers("tracked")
        self.curve = numbers("curve").reshape(-1, 2)
        fitted = state["fitted"]
        self.fitted = None if fitted is None else (int(fitted[0]), np.array(fitted[1], dtype=np.int64))

    def fit_together(self, n_changes: int) -> bool:
        """Whether a session can have had these values."""
        k, one_dimensional = self.domain.size, {self.domain.ndim, self.arms.ndim} == {1}
        if not one_dimensional or not np.isfinite(self.domain).all():
            return False
        return bool(
            self.arms.shape == self.rewards.shape == self.rounds.shape
            and self.pending.shape == self.tracked.shape == (k,)
            and (np.abs(self.rewards) <= LARGEST).all()
            and (np.diff(self.domain) > 0).all()
            and ((self.arms >= 0) & (self.arms < k)).all()
            and (np.diff(self.rounds, prepend=0) >= 0).all()
            and ((self.pending >= 0) & (self.pending == np.floor(self.pending))).all()
            and np.isfinite(self.pending).all()
            and np.isfinite(self.tracked).all()
            and self._changes_fit(k, n_changes)
        )

    def _changes_fit(self, k: int, n_changes: int) -> bool:
        if self.fitted is None:
            return True
        t, changes = self.fitted
        return bool(
            0 <= t <= len(self.arms)
            and changes.shape == (n_changes,)
            and ((changes >= 0) & (changes < k - 1)).all()
            and (np.diff(changes) > 0).all()
        )
