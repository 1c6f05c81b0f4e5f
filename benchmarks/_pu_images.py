"""Networks on images whose classes are mixed differently in source and target."""

import warnings
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from numpy.typing import NDArray

from seedbed.datasets import (
    PUDataModule,
    fetch_cifar10,
    fetch_fashion_mnist,
    fetch_mnist,
    fetch_svhn,
    load_mnist_5k,
    make_pu_domain_split,
)
from seedbed.estimators.pu_auc_covariate_shift.networks import NeuralRatio
from seedbed.lightning_modules import PUAUCModule

# Positive classes, and the classes common in the source population.
TASKS: dict[str, tuple[set[int], set[int]]] = {
    "mnist_5k": ({1, 3, 5, 7, 9}, {0, 1, 2, 3, 4, 5}),
    "mnist": ({1, 3, 5, 7, 9}, {0, 1, 2, 3, 4, 5}),
    "svhn": ({1, 3, 5, 7, 9}, {0, 1, 2, 3, 4, 5}),
    "fashion": ({1, 5, 7, 8, 9}, {1, 5, 7, 0, 2, 3}),
    "cifar10": ({0, 1, 8, 9}, {0, 1, 2, 3, 4}),
}


def image_data(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images in [0, 1], flat for perceptrons and (channels, height, width) for convolutions."""
    if name == "mnist_5k":
        X, y = load_mnist_5k(return_X_y=True)
        return X / 255.0, y
    fetch = {
        "mnist": fetch_mnist,
        "fashion": fetch_fashion_mnist,
        "svhn": fetch_svhn,
        "cifar10": fetch_cifar10,
    }
    found = fetch[name]()
    X, y = np.asarray(found.X_train), np.asarray(found.y_train)
    return (X.reshape(len(X), -1) if name in ("mnist", "fashion") else X) / 255.0, y


def network_aucs(
    name: str, *, prior: float, seeds: int, accelerator: str, epochs: int
) -> dict[str, list[float]]:
    """AUCs of networks by method, over seeds: weights from before, learned beside, or none ("plain")."""
    X, labels = image_data(name)
    positive, common = TASKS[name]
    classes = set(np.unique(labels).tolist())

    def mix(group: set[int]) -> dict[int, float]:
        return {
            label: (0.9 if label in group else 0.1) / len({*group} & side if label in group else side - group)
            for side in (positive, classes - positive)
            for label in side
        }

    small = len(X) < 10_000
    sizes = (100, 1500, 600, 400) if small else (100, 10_000, 5000, 2000)
    dynamic: dict[str, Any] = {"weighting": "dynamic", "trade_off": 0.0}
    methods: dict[str, dict[str, Any]] = {
        "plain": {"weighting": "none", "trade_off": 0.0},
        "J1, weights beforehand": {"weighting": "two_step", "trade_off": 0.0},
        "J1 + J2 (0.5), weights beforehand": {"weighting": "two_step", "trade_off": 0.5},
        "J1, weights learned beside": dynamic,
        "J1 + J2 (0.5), weights learned beside": {**dynamic, "trade_off": 0.5},
        "J1, weights learned beside, shared features": {**dynamic, "weight_input": "features"},
    }
    auc: dict[str, list[float]] = {method: [] for method in methods}
    for seed in range(seeds):
        split = make_pu_domain_split(
            X,
            labels,
            positive_classes=positive,
            source_mix=mix(common),
            target_mix=mix(classes - common),
            n_positive=sizes[0],
            n_unlabeled=sizes[1],
            n_target=sizes[2],
            n_test=sizes[3],
            class_prior=prior,
            random_state=seed,
        )
        shape = X.shape[1] if X.ndim == 2 else list(X.shape[1:])
        flat = [
            split[f"X_{part}"].reshape(sizes[i], -1)
            for i, part in enumerate(("positive", "unlabeled", "target"))
        ]
        ratio = NeuralRatio(0.5, random_state=seed).fit(flat[2], flat[1])
        weights = (*(np.maximum(ratio.predict(rows), 1e-3) for rows in flat[:2]), np.ones(sizes[2]))
        for method, settings in methods.items():
            module = PUAUCModule(shape, lr=1e-3, random_state=seed, **settings)
            data = PUDataModule(
                split,
                batch_size=1024,
                val_size=0.0,
                weights=weights if settings["weighting"] == "two_step" else None,
                standardize=False,
                random_state=seed,
            )
            trainer = Trainer(
                max_epochs=epochs,
                accelerator=accelerator,
                devices=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                limit_val_batches=0,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trainer.fit(module, datamodule=data)
                (metrics,) = trainer.test(module, datamodule=data, verbose=False)
            auc[method].append(float(metrics["test_auc"]))
    return auc
