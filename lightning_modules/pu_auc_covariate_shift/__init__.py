"""AUC maximisation from positives and unlabeled rows under covariate shift, for networks.

- ``losses``: sums over pairs without the pairs in memory, the risk, the criterion of the density ratio,
- ``networks``: perceptron and convolutional features,
- ``metrics``: risk and AUC over a whole validation set,
- ``module``: the LightningModule; ``ratio``: one that learns nothing but the density ratio.
"""
