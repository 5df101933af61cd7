"""How right predictions are: every case of `predict_cases` on the virtual GPU, against what a real one said.

    python benchmarks/predict.py compare [CASE...] --truth FOLDER/truth.json --json benchmarks/results/predict-h200.json
    python benchmarks/predict.py one CASE                   predicts one case in this process, on any machine
    python benchmarks/predict.py explain CASE FOLDER        where the truth and the prediction part, by operator
    GPUMEM_OTHER_SIZES=1 python benchmarks/predict.py compare --json benchmarks/results/predict-other-sizes.json

The truth is what `predict_gpu.py record FOLDER` wrote on the GPU; without `--truth` it is the one in the results. Of
other sizes, only the cases count that are not the same in both. Beside the prediction stand what
`accelerate estimate-memory`'s rule and torch's `MemTracker` say of the peak.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "predict-h200.json"
OTHER_TRUTH = HERE / "results" / "predict-other-sizes-h200.json"
EXPLANATIONS = HERE / "predict_explanations.json"
GPU = "H200"
NOTEWORTHY_PERCENT = 1.0
PEAKS = ("peak_allocated", "peak_reserved")
sys.path[:0] = [str(HERE), str(HERE.parent)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("compare")
    command.add_argument("cases", nargs="*")
    command.add_argument("--truth", type=Path)
    command.add_argument("--json", type=Path)
    command.add_argument("--at-once", type=int, default=2)
    command.add_argument("--mem-tracker", action="store_true", help="ask MemTracker about cases it was not asked about")
    command.set_defaults(function=compare)
    for name, function in (("one", one), ("mem_tracker", mem_tracker), ("explain", explain)):
        command = commands.add_parser(name)
        command.add_argument("case")
        command.set_defaults(function=function)
        if name == "explain":
            command.add_argument("folder", type=Path)
            command.add_argument("--least", type=int, default=1024 * 1024, help="bytes that are worth a line")
    options = parser.parse_args()
    options.function(options)


# One case, in this process.


def one(options) -> None:
    from predict_cases import CASES
    from predict_gpu import run

    from jupyter_gpumem.virtual.opening import virtual_gpu

    began = time.monotonic()
    with virtual_gpu(GPU):
        steps, weights = run(CASES[options.case])
    answer = {name: max(step[name] for step in steps) for name in PEAKS}
    print(json.dumps(answer | {"weights": weights, "steps": steps, "seconds": round(time.monotonic() - began, 2)}))


def mem_tracker(options) -> None:
    from baselines import mem_tracker_peak
    from predict_cases import CASES

    print(json.dumps({"peak_allocated": mem_tracker_peak(CASES[options.case])}))


# All of them, each in a process of its own.


def compare(options) -> None:
    from predict_cases import CASES
    from predict_cases.case import OTHER_SIZES

    truth = json.loads((options.truth or (OTHER_TRUTH if OTHER_SIZES else RESULTS)).read_text())
    real = {name: case.get("real", case) for name, case in truth["cases"].items()}
    names = options.cases or [name for name in CASES if name in real]
    if OTHER_SIZES:
        fitted = json.loads(RESULTS.read_text())["cases"]
        names = [name for name in names if real[name]["steps"] != fitted[name]["real"]["steps"]]
    # What MemTracker says does not depend on us: it is asked once, and then kept in the results.
    kept = options.json or RESULTS
    known = json.loads(kept.read_text())["cases"] if kept.exists() else {}
    jobs = [("one", name) for name in names]
    jobs += [("mem_tracker", name) for name in names if options.mem_tracker and not tracked_before(known, name)]
    answers = {("mem_tracker", name): tracked_before(known, name) or {"error": "not asked"} for name in names}
    with ThreadPoolExecutor(options.at_once) as pool:
        answers |= dict(zip(jobs, pool.map(lambda job: ask(*job), jobs), strict=True))
    explanations = json.loads(EXPLANATIONS.read_text())["other sizes" if OTHER_SIZES else "fitted sizes"]
    cases = {
        name: compared(CASES[name], real[name], answers["one", name], answers["mem_tracker", name], explanations)
        for name in names
    }
    results = {
        "what": "peaks of real runs, each in a process of its own, against predictions on the virtual GPU"
        + ("; texts and images of other sizes than those that the formulas were made with" if OTHER_SIZES else ""),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "commands": [
            truth.get("command", "") or truth["commands"][0],
            ("GPUMEM_OTHER_SIZES=1 " if OTHER_SIZES else "") + " ".join(["python", *sys.argv]),
        ],
        "device": truth["device"],
        "versions": {"real": truth["versions"].get("real", truth["versions"]), "predicted": versions()},
        "summary": summary(cases),
        "cases": cases,
    }
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def tracked_before(known: dict, name: str) -> dict | None:
    tracked = known.get(name, {}).get("others", {}).get("MemTracker", {})
    return {"peak_allocated": tracked["bytes"]} if "bytes" in tracked else None


def ask(command: str, name: str) -> dict:
    """Return what a process of its own answers, or `{"error": ...}`."""
    process = subprocess.run(
        [sys.executable, __file__, command, name], capture_output=True, text=True, check=False, timeout=600
    )
    if process.returncode == 0:
        return json.loads(process.stdout.strip().splitlines()[-1])
    lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
    return {"error": next((line for line in reversed(lines) if "Error" in line or "xception" in line), lines[-1])[:300]}


def compared(case, real: dict, predicted: dict, tracked: dict, explanations: dict) -> dict:
    percent = {name: difference(predicted[name], real[name]) if name in predicted else None for name in PEAKS}
    rule = rule_of_accelerate(case, real["weights"])
    return {
        "family": case.family,
        "optimizer": case.optimizer,
        "precision": case.precision,
        "fast": case.fast,
        "real": real,
        "predicted": predicted,
        "error_percent": percent,
        "others": {
            "accelerate estimate-memory": {"bytes": rule, "percent": difference(rule, real["peak_allocated"])},
            "MemTracker": tracked
            if "error" in tracked
            else {
                "bytes": tracked["peak_allocated"],
                "percent": difference(tracked["peak_allocated"], real["peak_allocated"]),
            },
        },
        "explanation": explanations.get(case.name),
    }


def rule_of_accelerate(case, weights: int) -> int:
    from baselines import accelerate_rule

    return accelerate_rule(case, weights)


def difference(predicted: int, real: int) -> float:
    return round(100 * (predicted - real) / real, 4)


def versions() -> dict:
    import torch

    return {"torch": torch.__version__, "python": sys.version.split()[0]}


def summary(cases: dict) -> dict:
    def sizes(of) -> dict:
        found = [abs(value) for value in map(of, cases.values()) if value is not None]
        if not found:
            return {}
        return {"cases": len(found), "median": round(statistics.median(found), 4), "worst": max(found)}

    return {
        "peak allocated, error in percent": sizes(lambda c: c["error_percent"]["peak_allocated"]),
        "peak reserved, error in percent": sizes(lambda c: c["error_percent"]["peak_reserved"]),
        "accelerate estimate-memory, of peak allocated": sizes(
            lambda c: c["others"]["accelerate estimate-memory"]["percent"]
        ),
        "MemTracker, of peak allocated": sizes(lambda c: c["others"]["MemTracker"].get("percent")),
        "not predicted": [name for name, case in cases.items() if "error" in case["predicted"]],
        "noteworthy and not explained": [name for name, c in cases.items() if noteworthy(c) and not c["explanation"]],
    }


def noteworthy(case: dict) -> bool:
    return any(value is None or abs(value) > NOTEWORTHY_PERCENT for value in case["error_percent"].values())


def table(results: dict) -> str:
    head = f"{'case':30}{'real MiB':>10}{'allocated':>11}{'reserved':>11}{'accelerate':>12}{'MemTracker':>12}"
    lines = [head]
    for name, case in results["cases"].items():
        shown = [*case["error_percent"].values(), *(other.get("percent") for other in case["others"].values())]
        columns = "".join(
            f"{'-' if value is None else f'{value:+.2f} %':>{width}}"
            for value, width in zip(shown, (11, 11, 12, 12), strict=True)
        )
        error = f"  {case['predicted']['error']}" if "error" in case["predicted"] else ""
        lines.append(f"{name:30}{case['real']['peak_allocated'] / 2**20:10.0f}{columns}{error}")
    return "\n".join([*lines, *(f"{name}: {value}" for name, value in results["summary"].items())])


def explain(options) -> None:
    """Log the operators of a prediction, and print where they take other amounts than the real ones."""
    from log_difference import differences
    from operator_log import read_calls
    from predict_gpu import log

    from jupyter_gpumem.virtual.opening import virtual_gpu

    folder = options.folder / "predicted"
    folder.mkdir(exist_ok=True)
    with virtual_gpu(GPU):
        log(folder, options.case)
    real, predicted = (read_calls(f / f"{options.case}.calls.gz") for f in (options.folder, folder))
    print("\n".join(differences(real, predicted, options.least)))


if __name__ == "__main__":
    main()
