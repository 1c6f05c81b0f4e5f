"""Malformed input meets every estimator: a clear error or a finite answer, never a silent NaN or a crash."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_classifier, is_regressor
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import get_tags
from sklearn.utils._param_validation import make_constraint
from sklearn.utils.validation import validate_data

from conformance.cases import Case, answers, cases, data, expected_warnings, fit, wants_targets
from conformance.malformed import VALUES, bad_rows, bad_targets, few_rows

ESTIMATORS = cases("estimator")
each = pytest.mark.parametrize("case", ESTIMATORS)
pytestmark = expected_warnings()

# What Python and NumPy say when nobody has checked.
INTERNAL = (
    "object is not subscriptable", "object is not iterable", "has no attribute", "unsupported operand",
    "cannot unpack", "not enough values to unpack", "object has no len", "could not be broadcast",
    "ufunc", "must be real number", "list index", "positional argument", "zero-size array",
    "zero-dimensional", "singular", "gufunc",
)  # fmt: skip


def judge(attempt):
    """Run it; return None if the outcome is as it should be, else what is wrong."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = attempt()
        except (ValueError, TypeError) as error:
            found = {}
            message = str(error)
            if not message:
                return f"{type(error).__name__} without a message"
            if any(words in message for words in INTERNAL):
                return f"an error from the inside: {type(error).__name__}: {message}"
        except Exception as error:  # noqa: BLE001 (anything else is the finding)
            return f"{type(error).__name__}: {error}"
    told = False
    for warning in caught:
        inside = any(f"/{name}/" in warning.filename for name in ("torch", "lightning"))
        theirs = any(f"/{name}/" in warning.filename for name in ("sklearn", "scipy"))
        meant = issubclass(warning.category, UserWarning)  # DataConversionWarning and ConvergenceWarning are
        told |= meant
        if inside or not (meant or theirs):
            return f"{warning.category.__name__} from {warning.filename}:{warning.lineno}: {warning.message}"
    for method, answer in found.items():
        part = answer.toarray() if sparse.issparse(answer) else np.asarray(answer)
        if part.dtype.kind not in "fc":
            continue
        # An interval may have no end, if that is said; NaN is never meant.
        endless = told and method.startswith(("predict_interval", "predict_set"))
        wrong = np.isnan(part) if endless else ~np.isfinite(part)
        if wrong.any():
            return f"{method} gives {part[wrong][0]} without a word"
    return None


def report(findings, tried, least):
    assert tried >= least, f"only {tried} inputs were tried"
    listed = "\n".join(f"  {name}: {finding}" for name, finding in findings)
    assert not findings, f"{len(findings)} of {tried} malformed inputs:\n{listed}"


def fitting(case, X, y, good):
    """Fit on these arrays and, if that works, ask for answers on them and on good rows."""

    def attempt():
        estimator = case.make()
        fit(estimator, X, y)
        found = answers(estimator, good) if np.shape(good)[1:] == (estimator.n_features_in_,) else {}
        return found | {
            f"{method} on the training rows": part for method, part in answers(estimator, X).items()
        }

    return attempt


def run_rows(case):
    X, y = data(case.make(), case.width, rows=60)
    inputs = [(name, rows, y) for name, rows in bad_rows(X)] + list(few_rows(X, y))
    findings = [(name, judge(fitting(case, rows, targets, X))) for name, rows, targets in inputs]
    return [finding for finding in findings if finding[1]], len(inputs)


def run_targets(case):
    X, y = data(case.make(), case.width, rows=60)
    inputs = list(bad_targets(y if y.ndim == 1 else y[:, 0]))
    if y.ndim == 2:
        worst = y == y.max()
        inputs += [
            ("good", y),
            ("one above", np.where(worst, 1.5, y)),
            ("one hole", np.where(worst, np.nan, y)),
        ]
    findings = [(name, judge(fitting(case, X, targets, X))) for name, targets in inputs]
    return [finding for finding in findings if finding[1]], len(inputs)


def run_questions(case):
    X, y = data(case.make(), case.width, rows=60)
    estimator = fit(case.make(), X, y)
    wrong_widths = [
        ("too wide", np.column_stack([X, X])),
        ("too narrow", X[:, :-1]),
        ("one row as 1-D", X[0]),
    ]
    inputs = [*bad_rows(X), *wrong_widths, ("one row", X[:1])]
    findings = [(name, judge(lambda rows=rows: answers(estimator, rows))) for name, rows in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before, after = answers(fit(case.make(), X, y), X), answers(estimator, X)
    findings += [
        (method, "bad questions changed the estimator")
        for method in before
        if not np.array_equal(np.asarray(before[method]), np.asarray(after[method]))
    ]
    return [finding for finding in findings if finding[1]], len(inputs)


@each
def test_malformed_rows_at_fit(case):
    report(*run_rows(case), least=70)


@each
def test_malformed_targets_at_fit(case):
    estimator = case.make()
    if not (get_tags(estimator).target_tags.required or is_classifier(estimator) or is_regressor(estimator)):
        pytest.skip("takes no targets")
    report(*run_targets(case), least=40)


@each
def test_malformed_rows_at_predict(case):
    report(*run_questions(case), least=65)


@each
def test_wrong_shapes_are_errors(case):
    X, y = data(case.make(), case.width)
    estimator = fit(case.make(), X, y)
    methods = sorted({name.partition("[")[0] for name in answers(estimator, X)})
    one_row = [] if get_tags(estimator).input_tags.one_d_array else [X[0]]
    holed = np.where(np.arange(X.size).reshape(X.shape) == 3, np.nan, X)
    holes = [] if get_tags(estimator).input_tags.allow_nan else [holed]
    for rows in (X[:, :-1], np.column_stack([X, X]), *one_row, X[:0], *holes, None):
        for method in methods:
            with pytest.raises((ValueError, TypeError)):
                getattr(estimator, method)(rows)
    if wants_targets(estimator):
        with pytest.raises(ValueError, match=r"inconsistent|same|length|samples"):
            fit(case.make(), X, y[:-1])


@each
def test_malformed_constructor_values(case):
    X, y = data(case.make(), case.width, rows=40)
    findings, tried, refused = [], 0, 0
    for name, declared in case.cls._parameter_constraints.items():
        constraints = [] if declared == "no_validation" else [make_constraint(one) for one in declared]
        for label, value in VALUES.items():
            tried += 1
            allowed = declared == "no_validation" or any(one.is_satisfied_by(value) for one in constraints)
            estimator = case.make(**{name: value})

            def attempt(estimator=estimator):
                fit(estimator, X, y)
                return answers(estimator, X)

            if allowed:
                # What the declaration lets through may still be refused in so many words.
                finding = judge(attempt)
            else:
                refused += 1
                finding = None
                try:
                    attempt()
                    finding = "was accepted"
                except (ValueError, TypeError) as error:
                    if name not in str(error):
                        finding = f"the error does not name it: {error}"
                except Exception as error:  # noqa: BLE001 (anything else is the finding)
                    finding = f"{type(error).__name__}: {error}"
            if finding:
                findings.append((f"{name}={label}", finding))
    assert refused > tried / 3
    report(findings, tried, least=len(VALUES))


# --- the judge itself ---------------------------------------------------------------------------------------


class Careless(RegressorMixin, BaseEstimator):
    """Checks nothing."""

    def fit(self, X, y):
        X = np.asarray(X, dtype=float)
        self.n_features_in_ = X.shape[1]
        self.coef_ = X.T @ np.asarray(y, dtype=float) / (X**2).sum(axis=0)
        return self

    def predict(self, X):
        return np.asarray(X, dtype=float) @ self.coef_


class Careful(ClassifierMixin, BaseEstimator):
    """Checks everything there is to check."""

    def fit(self, X, y):
        X, y = validate_data(self, X, y, dtype=np.float64)
        if y.dtype.kind not in "US" or len(set(y)) < 2:
            raise ValueError("y must be text of two classes")
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self.classes_[np.zeros(len(X), dtype=int)]


def test_the_judge_tells_careless_from_careful():
    findings, tried = run_rows(Case(f"{__name__}.Careless", {}))
    found = dict(findings)
    assert tried >= 70
    assert "nan without a word" in found["one NaN"]
    assert "zeros" in found
    assert "IndexError" in found["1-D"]
    assert not run_rows(Case(f"{__name__}.Careful", {}))[0]
    assert not run_targets(Case(f"{__name__}.Careful", {}))[0]
    assert not run_questions(Case(f"{__name__}.Careful", {}))[0]


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (lambda: {"predict": np.array([1.0])}, None),
        (lambda: {"predict": np.array([np.nan])}, "nan without a word"),
        (lambda: {"predict": np.array([np.inf])}, "inf without a word"),
        (lambda: {}["missing"], "KeyError"),
        (lambda: np.zeros(3)[3], "IndexError"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: np.float64(1) / np.float64(0), "RuntimeWarning"),
        (lambda: "a".nothing, "AttributeError"),
        (lambda: None + 1, "from the inside"),
        (lambda: warnings.warn("columns", DataConversionWarning, stacklevel=1) or {}, None),
    ],
)
def test_the_judge(outcome, verdict):
    found = judge(outcome)
    assert (found is None) if verdict is None else (verdict in found)
