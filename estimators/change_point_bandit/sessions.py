"""A session in plain values: saved, loaded, and gone on with exactly as it would have."""

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

VERSION = 1


class Sessions:
    """Saving and loading of :class:`~seedbed.estimators.ChangePointBandit`."""

    objective: str
    domain_: Any
    history_: Any
    stopping_curve_: Any
    _engine: Any
    _pending: Any
    _log: Any
    _round: int
    _curve: list[tuple[int, float]]
    _begin: Any
    _record: Any
    _conclude: Any
    _validate_params: Any
    get_params: Any

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
        return {
            "version": VERSION,
            "parameters": self._fingerprint(),
            "domain": self.domain_.tolist(),
            "arms": self.history_["arm"].tolist(),
            "rewards": self.history_["y"].tolist(),
            "rounds": self.history_["round"].tolist(),
            "pending": self._pending.tolist(),
            "tracked": self._engine.tracked[0].tolist(),
            "curve": self.stopping_curve_.tolist(),
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
        self._validate_params()
        if not isinstance(state, Mapping) or state.get("version") != VERSION:
            raise ValueError(f"state must have version {VERSION}, made by state_dict or save")
        if state.get("parameters") != self._fingerprint():
            raise ValueError("state was made with other parameters than this estimator has")
        try:
            domain = np.array(state["domain"], dtype=float)
            arms, rewards = np.array(state["arms"], dtype=np.int64), np.array(state["rewards"], dtype=float)
            rounds, pending = (
                np.array(state["rounds"], dtype=np.int64),
                np.array(state["pending"], dtype=float),
            )
            tracked, curve = np.array(state["tracked"], dtype=float), np.array(state["curve"], dtype=float)
            whole = (
                len(arms) == len(rewards) == len(rounds)
                and pending.shape == tracked.shape == domain.shape
                and np.isfinite(rewards).all()
                and (np.diff(domain) > 0).all()
                and ((arms >= 0) & (arms < len(domain))).all()
                and (np.diff(rounds) >= 0).all()
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"state is damaged: {error}") from error
        if not whole:
            raise ValueError("state is damaged: its parts do not fit together")
        self._begin(domain)
        edges = np.flatnonzero(np.diff(rounds, prepend=-1, append=np.iinfo(np.int64).max))
        for begin, end in pairwise(edges):
            self._record(arms[begin:end], rewards[begin:end])
            if self.objective == "all":
                self._engine.stopped()  # what was shown at each round stays shown
        self._round = int(rounds[-1]) + 1 if len(rounds) else 0
        self._log["round"][: len(rounds)] = rounds
        self._pending[:] = pending
        self._engine.tracked[0] = tracked
        self._conclude()
        self._curve = [(int(t), float(value)) for t, value in curve.reshape(-1, 2)]
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
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is no saved session: {error}") from error
        return self.load_state_dict(state)

    def _fingerprint(self) -> str:
        """Hash of what the course of a session depends on."""
        parameters = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name not in ("verbose", "max_evals", "batch_size")
        }
        sigma = parameters["sigma"]
        parameters["sigma"] = float(sigma) if isinstance(sigma, Real) else np.asarray(sigma, float).tolist()
        if callable(parameters["threshold"]):
            parameters["threshold"] = getattr(parameters["threshold"], "__qualname__", "callable")
        text = json.dumps(parameters, sort_keys=True, default=float)
        return hashlib.sha256(text.encode()).hexdigest()
