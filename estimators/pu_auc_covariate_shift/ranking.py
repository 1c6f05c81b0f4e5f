"""What a fitted classifier says: scores, labels, weights, and how well it ranks."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from seedbed.checks import check_choice
from seedbed.estimators.pu_auc_covariate_shift.losses import Floats
from seedbed.estimators.pu_auc_covariate_shift.risk import weighted_pu_auc_score
from seedbed.estimators.pu_auc_covariate_shift.samples import Rows, split_samples
from seedbed.estimators.pu_auc_covariate_shift.scorers import KernelMap
from seedbed.estimators.pu_auc_covariate_shift.weights import bounded, predict_ratio


def named(value: Any, *names: str) -> bool:
    """Whether a parameter that may also be an object is one of these names.

    Parameters
    ----------
    value : object
        The parameter.
    *names : str
        The names.

    Returns
    -------
    bool
        True only for text.
    """
    return isinstance(value, str) and value in names


class FittedRanker(ClassifierMixin, BaseEstimator):
    """The part of :class:`PUAUCClassifier` that needs no training."""

    density_ratio: Any
    relative_alpha: float
    target_weighting: str
    trade_off: float
    weight_clip: float | None
    weight_floor: float
    classes_: NDArray[Any]
    coef_: Floats
    density_ratio_: Any
    module_: Any
    threshold_: float
    _kernel: KernelMap

    @property
    def _options(self) -> dict[str, Any]:
        """How rows are validated."""
        raise NotImplementedError

    def _bounded(self, ratio: Floats) -> Floats:
        return bounded(ratio, float(self.weight_floor), self.weight_clip)

    def _known_weights(self, X: Rows) -> Floats:
        """Weights of checked rows; ones where none were estimated."""
        if self.density_ratio_ is None:
            return np.ones(X.shape[0])
        return self._bounded(predict_ratio(self.density_ratio_, X))

    def _target_ratio(self, rows: Rows) -> Floats:
        """Weights of target rows in J2: ``(1 - alpha w) / (1 - alpha) = p_tr / p_alpha``, or ones."""
        if self.target_weighting == "none" or self.density_ratio_ is None:
            return np.ones(rows.shape[0])
        alpha = float(self.relative_alpha)
        w = predict_ratio(self.density_ratio_, rows)
        return self._bounded(np.maximum(1 - alpha * w, 0) / (1 - alpha))

    def _raw_scores(self, X: Rows) -> Floats:
        """Scores of checked rows."""
        if hasattr(self, "module_") and not hasattr(self, "coef_"):
            from seedbed.estimators.pu_auc_covariate_shift.networks import network_scores

            scores = network_scores(self.module_, X)
        else:
            features = self._kernel(X) if hasattr(self, "landmarks_") else X
            with np.errstate(all="ignore"):
                scores = np.asarray(features @ self.coef_[0].astype(np.float64), dtype=np.float64)
        if not np.isfinite(scores).all():
            raise ValueError("scores are not finite: X has values too large; scale its columns")
        return scores

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Score of each row less ``threshold_``: the higher, the more probably positive.

        Parameters
        ----------
        X : {array-like, sparse} of shape (n, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n,)
            Above 0 where ``predict`` says positive; float32 for float32 rows.

        Raises
        ------
        ValueError
            If X is malformed or a score is not finite.
        NotFittedError
            Before ``fit``.
        """
        check_is_fitted(self, "threshold_")
        X = validate_data(self, X, reset=False, **self._options)
        found = self._raw_scores(X) - self.threshold_
        with np.errstate(over="ignore"):
            answer: NDArray[Any] = found.astype(X.dtype)
        if not np.isfinite(answer).all():
            raise ValueError(f"scores do not fit into {X.dtype}: X has values too large; scale its columns")
        return answer

    def predict(self, X: Any) -> NDArray[Any]:
        """Label of each row: that of positives where the score is above ``threshold_``.

        Parameters
        ----------
        X : {array-like, sparse} of shape (n, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n,)
            Labels out of ``classes_``.

        Raises
        ------
        ValueError
            If X is malformed or a score is not finite.
        NotFittedError
            Before ``fit``.
        """
        positive = self.decision_function(X) > 0
        answer: NDArray[Any] = self.classes_[positive.astype(int)]
        return answer

    def importance_weights(self, X: Any) -> Floats:
        """Estimated weight ``p_te / p_tr`` (or its relative) of each row, within floor and clip.

        Parameters
        ----------
        X : {array-like, sparse} of shape (n, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n,)
            Weights; ones where none were estimated.

        Raises
        ------
        ValueError
            If X is malformed, or weights were precomputed and so are not known elsewhere.
        NotFittedError
            Before ``fit``.
        """
        check_is_fitted(self, "threshold_")
        X = validate_data(self, X, reset=False, **self._options)
        if named(self.density_ratio, "precomputed"):
            raise ValueError(
                "density_ratio='precomputed' knows no weights of other rows; compute them likewise"
            )
        return self._known_weights(X)

    def pu_auc(
        self,
        X: Any,
        y: Any,
        *,
        sample_domain: ArrayLike | None = None,
        X_target: Any = None,
        sample_weight: ArrayLike | None = None,
        method: str = "source",
    ) -> float:
        """Weighted share of (positive, unlabeled) pairs in order: the AUC that needs no negatives.

        "source" pairs weighted positives with weighted unlabeled source rows. Whatever the weights, that is
        an increasing function of the AUC of *some* population with the same p(y|x). "target" pairs them with
        target rows, which is such a function only if the weights are right. "both" is ``(1 - trade_off)``
        times the first plus ``trade_off`` times the second. Compare models by the same method and weights:
        estimators with other weights measure other populations.

        Parameters
        ----------
        X, y, sample_domain, X_target
            As in :meth:`fit`.
        sample_weight : array-like of shape (n,), optional
            Multiplies the estimated weights.
        method : {"source", "target", "both"}
            See above.

        Returns
        -------
        float
            In [0, 1]. :func:`auc_from_pu_auc` turns it into an AUC, given the class prior.

        Raises
        ------
        ValueError
            If arrays are malformed, or target rows are needed and missing.
        NotFittedError
            Before ``fit``.
        """
        check_is_fitted(self, "threshold_")
        check_choice("method", method, ("source", "target", "both"))
        samples = split_samples(
            self,
            X,
            y,
            sample_domain=sample_domain,
            X_target=None if method == "source" else X_target,
            sample_weight=sample_weight,
            fitting=False,
            **self._options,
        )
        if samples.target is None and method != "source":
            raise ValueError(f"method={method!r} needs target rows: pass sample_domain or X_target")
        positive = self._raw_scores(samples.positive)
        weight = self._known_weights(samples.positive) * samples.positive_weight
        found = 0.0
        share = {"source": 0.0, "target": 1.0, "both": float(self.trade_off)}[method]
        if share < 1:
            unlabeled = self._known_weights(samples.unlabeled) * samples.unlabeled_weight
            scores = self._raw_scores(samples.unlabeled)
            found += (1 - share) * weighted_pu_auc_score(positive, scores, weight, unlabeled)
        if share > 0:
            scores = self._raw_scores(samples.target)
            target = self._target_ratio(samples.target) * samples.target_weight
            found += share * weighted_pu_auc_score(positive, scores, weight, target)
        return found

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        sample_domain: ArrayLike | None = None,
        X_target: Any = None,
        score_method: str = "source",
    ) -> float:
        """Weighted PU-AUC, see :meth:`pu_auc`: for model selection without negatives.

        Parameters
        ----------
        X, y, sample_weight, sample_domain, X_target
            As in :meth:`pu_auc`.
        score_method : {"source", "target", "both"}
            Its ``method``.

        Returns
        -------
        float
            In [0, 1].

        Raises
        ------
        ValueError
            As :meth:`pu_auc`.
        """
        return self.pu_auc(
            X,
            y,
            sample_domain=sample_domain,
            X_target=X_target,
            sample_weight=sample_weight,
            method=score_method,
        )
