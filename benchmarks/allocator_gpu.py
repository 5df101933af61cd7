"""See on a GPU what every magic that acts on the allocator brings about, and keep it as JSON.

    python benchmarks/allocator_gpu.py --json benchmarks/results/allocator-h200.json

It runs `tests/gpu/test_allocator_magics.py`, whose tests keep what they expected and what they found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = "tests/gpu/test_allocator_magics.py"


def main() -> int:
    """Run the tests and write what they found; the exit code is that of the tests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="where to write")
    target = parser.parse_args().json
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "results.json"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", TESTS],
            cwd=ROOT,
            env=os.environ | {"GPUMEM_RESULTS": str(found)},
            check=False,
        )
        results = json.loads(found.read_text(encoding="utf-8"))
    results |= {
        "what": "effects of the magics that act on the allocator: what was expected and what was found",
        "command": f"python benchmarks/allocator_gpu.py --json {target}",
    }
    target.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
