"""Classifiers and regressors that learn without backpropagation."""

from seedbed.estimators.dll.display import AlignmentDisplay
from seedbed.estimators.dll.facades import DLLCNNClassifier, DLLMLPClassifier, DLLMLPRegressor

__all__ = ["AlignmentDisplay", "DLLCNNClassifier", "DLLMLPClassifier", "DLLMLPRegressor"]
