"""ICML 2025 papers as scikit-learn estimators, torch optimizers and Lightning modules.

Subpackages load on first use, so ``import seedbed`` costs next to nothing:

- ``seedbed.estimators``: fit / predict classes,
- ``seedbed.optimizers``: ``torch.optim.Optimizer`` wrappers,
- ``seedbed.lightning_modules``: Lightning modules and their layers,
- ``seedbed.datasets``: ``load_*``, ``make_*``, ``fetch_*`` and data modules.
"""

import lazy_loader as _lazy

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = _lazy.attach(
    __name__, submodules=["catalog", "datasets", "estimators", "lightning_modules", "optimizers"]
)
__all__ += ["__version__"]
