import re

import numpy as np
import pytest

from seedbed.checks import check_choice, check_number, missing_extra


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (0.0, {"low": 0, "high": 1}),
        (1.0, {"low": 0, "high": 1}),
        (0.0, {"low": 0, "high": 1, "closed": "left"}),
        (1.0, {"low": 0, "high": 1, "closed": "right"}),
        (0.5, {"low": 0, "high": 1, "closed": "neither"}),
        (-1e300, {}),
        (3, {"low": 1, "integer": True}),
        (np.int64(3), {"low": 1, "integer": True}),
        (np.float32(0.5), {"low": 0}),
    ],
)
def test_accepts(value, options):
    assert check_number("p", value, **options) is None


@pytest.mark.parametrize(
    ("value", "options", "allowed"),
    [
        (0.0, {"low": 0, "high": 1, "closed": "right"}, "(0, 1]"),
        (1.0, {"low": 0, "high": 1, "closed": "left"}, "[0, 1)"),
        (1.0, {"low": 0, "high": 1, "closed": "neither"}, "(0, 1)"),
        (-1e-9, {"low": 0, "high": 1}, "[0, 1]"),
        (1 + 1e-9, {"low": 0, "high": 1}, "[0, 1]"),
        (0, {"low": 1, "integer": True}, "[1, inf)"),
        (2.0, {"high": 1}, "(-inf, 1]"),
        (float("nan"), {}, "(-inf, inf)"),
        (float("inf"), {"low": 0}, "[0, inf)"),
    ],
)
def test_out_of_range_names_parameter_value_and_range(value, options, allowed):
    with pytest.raises(
        ValueError, match=f"^p must be in {re.escape(allowed)}, got {re.escape(repr(value))}$"
    ):
        check_number("p", value, **options)


@pytest.mark.parametrize(
    ("value", "integer"),
    [
        ("1", False),
        (None, False),
        (True, False),
        (np.True_, False),
        (1 + 0j, False),
        (1.0, True),
        (True, True),
    ],
)
def test_wrong_type(value, integer):
    wanted = "an integer" if integer else "a number"
    with pytest.raises(TypeError, match=f"^p must be {wanted}, got .* of type {type(value).__name__}$"):
        check_number("p", value, integer=integer)


def test_choice():
    assert check_choice("rule", "dll", ("dll", None)) is None
    assert check_choice("rule", None, ("dll", None)) is None
    with pytest.raises(ValueError, match=r"^rule must be one of 'dll', None; got 'bp'$"):
        check_choice("rule", "bp", ("dll", None))
    # equal is not enough: 1 == True
    with pytest.raises(ValueError, match="got 1"):
        check_choice("rule", 1, (True, False))
    # an array among the choices' types must not end in an ambiguous truth value
    with pytest.raises(ValueError, match="must be one of"):
        check_choice("rule", np.zeros(2), ("a", "b"))


def test_missing_extra_names_the_pip_line():
    error = missing_extra("pandas", "data", "load_diamonds")
    assert isinstance(error, ImportError)
    assert str(error) == "load_diamonds needs pandas: pip install 'seedbed[data]'"
