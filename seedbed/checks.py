"""Argument checks for classes that are not scikit-learn estimators.

Estimators declare ``_parameter_constraints`` instead. Both fail before any work is done, with an error
that names the parameter, the value and what is allowed.
"""

from collections.abc import Collection
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

Closed = Literal["both", "left", "right", "neither"]


def check_number(
    name: str,
    value: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    closed: Closed = "both",
    integer: bool = False,
) -> None:
    """Raise unless ``value`` is a finite number inside the interval.

    Parameters
    ----------
    name : str
        The parameter's name, for the message.
    value : object
        What was passed.
    low, high : float, optional
        Ends of the interval; None leaves that side open-ended.
    closed : {"both", "left", "right", "neither"}
        Which ends belong to the interval.
    integer : bool
        Whether only integers are allowed.

    Raises
    ------
    TypeError
        If ``value`` is no number (a bool is none), or no integer where one is asked for.
    ValueError
        If it is NaN, infinite or outside the interval.
    """
    kind = Integral if integer else Real
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kind):
        wanted = "an integer" if integer else "a number"
        raise TypeError(f"{name} must be {wanted}, got {value!r} of type {type(value).__name__}")
    number = float(value)
    below = low is not None and (number < low or (number == low and closed in ("right", "neither")))
    above = high is not None and (number > high or (number == high and closed in ("left", "neither")))
    if not np.isfinite(number) or below or above:
        left = "(-inf" if low is None else ("[" if closed in ("both", "left") else "(") + f"{low:g}"
        right = "inf)" if high is None else f"{high:g}" + ("]" if closed in ("both", "right") else ")")
        raise ValueError(f"{name} must be in {left}, {right}, got {value!r}")


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise ValueError unless ``value`` is one of ``choices``.

    Parameters
    ----------
    name : str
        The parameter's name, for the message.
    value : object
        What was passed.
    choices : collection
        What is allowed.

    Raises
    ------
    ValueError
        If ``value`` is none of the choices.
    """
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}; got {value!r}")


def missing_extra(package: str, extra: str, purpose: str) -> ImportError:
    """Return the ImportError for a missing optional package.

    Parameters
    ----------
    package : str
        The package that could not be imported.
    extra : str
        The extra of seedbed that installs it.
    purpose : str
        What it is needed for.

    Returns
    -------
    ImportError
        To be raised by the caller.
    """
    return ImportError(f"{purpose} needs {package}: pip install 'seedbed[{extra}]'")
