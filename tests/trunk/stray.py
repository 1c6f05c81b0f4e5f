"""Finds modules of the mapped folders that were imported under a name outside seedbed."""

import sys

FOLDERS = ("datasets", "estimators", "lightning_modules", "optimizers")


def stray_modules(root):
    """Names of such modules among those loaded, sorted."""
    folders = tuple(f"{root / name}/" for name in FOLDERS)
    return sorted(
        name
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] != "seedbed"
        and (getattr(module, "__file__", None) or "").startswith(folders)
    )
