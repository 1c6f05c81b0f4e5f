"""CoJER: intervals that control the false coverage proportion of a batch."""

from seedbed.estimators.cojer.bridge import from_mapie
from seedbed.estimators.cojer.competitors import dkw_fcp_level, dkw_fcp_margin
from seedbed.estimators.cojer.display import CoJERDisplay
from seedbed.estimators.cojer.laws import (
    false_coverage_proportion,
    fcp_exceedance_probability,
    joint_error_rate,
)
from seedbed.estimators.cojer.quantile_band import QuantileBand
from seedbed.estimators.cojer.regressor import CoJERRegressor
from seedbed.estimators.cojer.thresholds import cojer_confidence_level, cojer_level, cojer_thresholds

__all__ = [
    "CoJERDisplay",
    "CoJERRegressor",
    "QuantileBand",
    "cojer_confidence_level",
    "cojer_level",
    "cojer_thresholds",
    "dkw_fcp_level",
    "dkw_fcp_margin",
    "false_coverage_proportion",
    "fcp_exceedance_probability",
    "from_mapie",
    "joint_error_rate",
]
