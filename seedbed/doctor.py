"""What ``seedbed doctor`` finds: versions, extras, devices, and whether everything imports.

Versions are read from package metadata, so a broken installation can still be described.
"""

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seedbed.catalog import METHODS, load

BRANCHES = ("datasets", "estimators", "lightning_modules", "optimizers")


@dataclass(frozen=True)
class Package:
    """A requirement and what is installed.

    Attributes
    ----------
    name : str
        Distribution name.
    required : str
        Version range, such as ``">=1.6"``.
    version : str or None
        Installed version.
    ok : bool
        Whether it is there and in range.
    """

    name: str
    required: str
    version: str | None
    ok: bool


@dataclass(frozen=True)
class Extra:
    """An extra of seedbed.

    Attributes
    ----------
    name : str
        As in ``pip install 'seedbed[name]'``.
    lacking : tuple of str
        Requirements that are missing or too old.
    install : str
        What installs them.
    """

    name: str
    lacking: tuple[str, ...]
    install: str


@dataclass(frozen=True)
class Part:
    """A package of seedbed, or a public name of a method.

    Attributes
    ----------
    name : str
        Import path.
    error : str
        Why it does not import; empty where it does.
    """

    name: str
    error: str


@dataclass(frozen=True)
class Findings:
    """All that was found.

    Attributes
    ----------
    versions : dict
        Of seedbed, Python and the system.
    core : list of Package
        What seedbed always needs.
    extras : list of Extra
        What it can use.
    devices : list of str
        Where torch can compute.
    threads : dict
        Cores, torch's threads and the variables that limit them.
    data_home : str
        Where downloaded data is kept.
    parts : list of Part
        What was imported.
    """

    versions: dict[str, str]
    core: list[Package]
    extras: list[Extra]
    devices: list[str]
    threads: dict[str, str]
    data_home: str
    parts: list[Part]

    @property
    def ok(self) -> bool:
        """Whether every core package is in range and everything imports."""
        return all(package.ok for package in self.core) and not any(part.error for part in self.parts)

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``--json``.

        Returns
        -------
        dict
            The attributes and ``ok``.
        """
        return {**asdict(self), "ok": self.ok}


def _inspect(requirement: Requirement) -> Package:
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return Package(requirement.name, str(requirement.specifier), None, ok=False)
    fits = requirement.specifier.contains(found, prereleases=True)
    return Package(requirement.name, str(requirement.specifier), found, ok=fits)


def _requirements(extra: str) -> Iterator[Requirement]:
    """Requirements of an extra, with those of the extras it names; "" means the core ones."""
    for line in distribution("seedbed").requires or ():
        requirement = Requirement(line)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not wanted or (extra and always):
            continue
        if canonicalize_name(requirement.name) == "seedbed":
            for inner in sorted(requirement.extras):
                yield from _requirements(inner)
        else:
            yield requirement


def core_packages() -> list[Package]:
    """Compare the core requirements with what is installed.

    Returns
    -------
    list of Package
        In the order of the package metadata.
    """
    return [_inspect(requirement) for requirement in _requirements("")]


def extras() -> list[Extra]:
    """Compare each extra's requirements with what is installed.

    Returns
    -------
    list of Extra
        In the order of the package metadata.
    """
    found = []
    for name in distribution("seedbed").metadata.get_all("Provides-Extra") or ():
        lacking = [
            f"{package.name}{package.required}"
            for package in dict.fromkeys(_inspect(requirement) for requirement in _requirements(name))
            if not package.ok
        ]
        found.append(Extra(name, tuple(lacking), f"pip install 'seedbed[{name}]'"))
    return found


def _devices() -> list[str]:
    import torch

    devices = ["cpu"]
    for index in range(torch.cuda.device_count()):
        traits = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} {traits.name}, {traits.total_memory / 2**30:.0f} GiB")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices


def _threads() -> dict[str, str]:
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limits = {
        name: os.environ[name]
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        if name in os.environ
    }
    return {"usable cores": str(usable), "torch": str(torch.get_num_threads()), **limits}


def _import_parts() -> Iterator[Part]:
    branches = [f"seedbed.{branch}" for branch in BRANCHES]
    names = [method.path(public) for method in METHODS for public in method.public]
    for name in (*branches, *names):
        try:
            load(name)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a part, it is to be listed
            yield Part(name, f"{type(error).__name__}: {error}")
        else:
            yield Part(name, "")


def _data_home() -> str:
    try:
        return str(load("seedbed.datasets.get_data_home")())
    except Exception as error:  # noqa: BLE001 - likewise
        return f"unknown ({type(error).__name__}: {error})"


def examine() -> Findings:
    """Look at the installation; torch and every public name are imported.

    Nothing is changed, but that the data folder is made where there is none.

    Returns
    -------
    Findings
        All of it.

    Raises
    ------
    importlib.metadata.PackageNotFoundError
        If seedbed itself is not installed (only on the path).
    """
    core = core_packages()
    versions = {
        "seedbed": version("seedbed"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    try:
        devices, threads = _devices(), _threads()
    except Exception as error:  # noqa: BLE001 - torch may be missing or broken: that is a finding
        devices, threads = [f"unknown ({type(error).__name__}: {error})"], {}
    return Findings(versions, core, extras(), devices, threads, _data_home(), list(_import_parts()))


def advice(findings: Findings) -> Sequence[str]:
    """Say what to do about what is wrong.

    Parameters
    ----------
    findings : Findings
        From :func:`examine`.

    Returns
    -------
    sequence of str
        One line each; empty when nothing is.
    """
    bad = [f"'{package.name}{package.required}'" for package in findings.core if not package.ok]
    lines = [f"pip install {' '.join(bad)}"] if bad else []
    return lines + [f"{part.name} does not import: {part.error}" for part in findings.parts if part.error]
