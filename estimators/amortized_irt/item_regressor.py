"""ItemDifficultyRegressor: rows are items, so scikit-learn splits, searches and scores over questions."""

from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, _fit_context
from sklearn.metrics import roc_auc_score
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data

from seedbed.estimators.amortized_irt.amortized import AmortizedIRT

Floats = NDArray[Any]


class ItemDifficultyRegressor(BaseEstimator):
    """Predict the difficulty of questions from their features; samples are items.

    The model of :class:`AmortizedIRT`, turned by a quarter: ``fit(X, y)`` takes the features of the items
    and, for each item, the answers of all takers. So cross-validation holds out questions, which is what a
    new question needs; pipelines and searches work as for any regressor.

    Parameters
    ----------
    style : {"joint", "plugin"}, default="joint"
        As for :class:`AmortizedIRT`.
    model : {"rasch", "2pl"}, default="rasch"
        Likewise.
    residual : {"normal", None}, default="normal"
        Likewise.
    network : {"linear", "mlp"}, default="linear"
        Likewise.
    hidden_layer_sizes : tuple of int, default=()
        Likewise.
    l2 : float, default=0.01
        Likewise.
    difficulty_regressor : regressor, default=None
        Likewise.
    n_quadrature : int, default=9
        Likewise.
    max_iter : int, default=200
        Likewise.
    tol : float, default=1e-8
        Likewise.
    learning_rate, weight_decay : float, default=1e-3, 1e-4
        Likewise.
    n_network_steps : int, default=50
        Likewise.
    random_state : int, RandomState instance or None, default=None
        Likewise.

    Attributes
    ----------
    model_ : AmortizedIRT
        The fitted model, rows being takers.
    ability_ : ndarray of shape (n_takers,)
        Abilities of the takers.
    coef_, intercept_ : ndarray of shape (n_features,) and float
        Of a linear f.
    residual_std_ : float
        tau, the standard deviation of a difficulty about its prediction.
    n_features_in_ : int
        Number of item features.
    feature_names_in_ : ndarray of str
        Their names, if they have some.

    See Also
    --------
    AmortizedIRT : Rows are takers.

    References
    ----------
    .. [1] S. T. Truong, Y. Tu, P. Liang, B. Li, S. Koyejo, "Reliable and Efficient Amortized Model-based
       Evaluation", ICML 2025.

    Examples
    --------
    >>> from sklearn.model_selection import cross_val_score
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from seedbed.datasets import load_classifier_responses
    >>> from seedbed.estimators import ItemDifficultyRegressor
    >>> found = load_classifier_responses()
    >>> model = make_pipeline(StandardScaler(), ItemDifficultyRegressor())
    >>> auc = cross_val_score(model, found.item_features[:600], found.data.T[:600], cv=3)
    >>> bool((auc > 0.85).all())
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "style": [StrOptions({"joint", "plugin"})],
        "model": [StrOptions({"rasch", "2pl"})],
        "residual": [StrOptions({"normal"}), None],
        "network": [StrOptions({"linear", "mlp"})],
        "hidden_layer_sizes": ["array-like"],
        "l2": [Interval(Real, 0, None, closed="left")],
        "difficulty_regressor": [HasMethods(["fit", "predict"]), None],
        "n_quadrature": [Interval(Integral, 3, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "n_network_steps": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        style: Literal["joint", "plugin"] = "joint",
        *,
        model: Literal["rasch", "2pl"] = "rasch",
        residual: Literal["normal"] | None = "normal",
        network: Literal["linear", "mlp"] = "linear",
        hidden_layer_sizes: tuple[int, ...] = (),
        l2: float = 1e-2,
        difficulty_regressor: Any = None,
        n_quadrature: int = 9,
        max_iter: int = 200,
        tol: float = 1e-8,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        n_network_steps: int = 50,
        random_state: Any = None,
    ) -> None:
        self.style = style
        self.model = model
        self.residual = residual
        self.network = network
        self.hidden_layer_sizes = hidden_layer_sizes
        self.l2 = l2
        self.difficulty_regressor = difficulty_regressor
        self.n_quadrature = n_quadrature
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.n_network_steps = n_network_steps
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.one_d_labels = False
        tags.target_tags.two_d_labels = True
        tags.target_tags.multi_output = True
        tags.input_tags.sparse = True
        return tags

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any) -> Self:
        """Fit difficulties to answers.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_items, n_features)
            Features of the items.
        y : array-like of shape (n_items, n_takers)
            1 where the taker of the column got the item of the row right, 0 where wrong, NaN where it was not
            administered.

        Returns
        -------
        self
            The fitted model.

        Raises
        ------
        ValueError
            If y is missing or has another number of rows or a cell that is neither 0, 1 nor NaN; a taker has
            no answer; there are fewer than 2 items or takers; or X has a NaN.
        """
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: the answers, of "
                "shape (n_items, n_takers)"
            )
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], ensure_min_samples=2)
        answers = _answers(X, y)
        shared = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name in AmortizedIRT().get_params()
        }
        self.model_ = AmortizedIRT(**shared).fit(answers.T, item_features=X)
        self.ability_ = self.model_.ability_
        self.residual_std_ = self.model_.residual_std_
        for name in ("coef_", "intercept_"):
            self.__dict__.pop(name, None)
            if hasattr(self.model_, name):
                setattr(self, name, getattr(self.model_, name))
        self._dtype = X.dtype
        return self

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """Predict difficulties.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_items, n_features)
            Features of the items.
        return_std : bool
            Whether to return the standard deviation of the error too.

        Returns
        -------
        b : ndarray of shape (n_items,)
            Difficulties; large is hard.
        std : ndarray of shape (n_items,)
            Only with ``return_std``.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32])
        b, std = (part.astype(self._dtype) for part in self.model_.predict_difficulty(X))
        return (b, std) if return_std else b

    def predict_proba(self, X: Any) -> Floats:
        """Predict how likely each taker in ``fit`` is to get each item right.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_items, n_features)
            Features of the items.

        Returns
        -------
        ndarray of shape (n_items, n_takers)
            Probabilities of a right answer, averaged over the errors of the difficulties.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32])
        items = self.model_._new_items(X).softened()
        return items.probability(self.ability_).T.astype(self._dtype)

    def score(self, X: Any, y: Any) -> float:
        """Area under the ROC curve of the answers to (new) items.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_items, n_features)
            Features of the items.
        y : array-like of shape (n_items, n_takers)
            Answers of the takers in ``fit``, NaN where there is none.

        Returns
        -------
        float
            1 if every right answer was held likelier than every wrong one, 1/2 for guesses.

        Raises
        ------
        ValueError
            If y has another shape, or all its answers are right, or all wrong.
        """
        found = self.predict_proba(X)
        answers = _answers(found, y)
        if answers.shape != found.shape:
            raise ValueError(
                f"y must have a column for each of {found.shape[1]} takers as in fit, got {answers.shape[1]}"
            )
        seen = ~np.isnan(answers)
        if len(np.unique(answers[seen])) != 2:
            raise ValueError("y must have right and wrong answers to have an area under the curve")
        return float(roc_auc_score(answers[seen], found[seen]))


def _answers(X: Any, y: Any) -> Floats:
    """Check the answers: one row for each item."""
    found = check_array(y, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y", ensure_2d=False)
    if found.ndim != 2:
        raise ValueError(
            f"y must have shape (n_items, n_takers), got {found.shape}: one row of answers for each item"
        )
    check_consistent_length(X, found)
    wrong = ~(np.isnan(found) | (found == 0) | (found == 1))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(f"y[{row}, {column}] must be 0, 1 or NaN, got {found[row, column]:g}")
    return np.asarray(found)
