"""With two devices: both are measured at once, and the driver is asked about the right card whatever the order."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

MiB = 2**20

CODE = """
import json, torch, pynvml
import jupyter_gpumem as gm

pynvml.nvmlInit()
order = [int(n) for n in __import__("os").environ["CUDA_VISIBLE_DEVICES"].split(",")]
MiB = 2**20
first = torch.empty(1, device="cuda:0")
with gm.measure() as m:
    a = torch.empty(200 * MiB, dtype=torch.uint8, device="cuda:0")
    if len(order) > 1:
        b = torch.empty(900 * MiB, dtype=torch.uint8, device="cuda:1"); del b
    del a
status = gm.status()
seen = []
for one in status.devices:
    handle = pynvml.nvmlDeviceGetHandleByIndex(order[one.device.index])
    info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    seen.append({"card": order[one.device.index], "same_card": one.device.uuid in pynvml.nvmlDeviceGetUUID(handle),
                 "used": one.driver.used, "driver_used": info.used, "layers_add_up":
                 sum(size for _, size in one.layers) == one.driver.total, "source": one.driver.source})
print(json.dumps({"usages": [u.to_dict() for u in m.result.devices], "cards": seen}))
"""


def run(visible):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(autouse=True, scope="module")
def two_devices():
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU; the two-device tests run on one that has two")


@pytest.mark.parametrize("visible", ["0,1", "1,0"])
def test_both_devices_have_their_own_exact_peaks(visible, results):
    """Each device gets its own peak, and a device first used inside the interval starts from nothing."""
    found = run(visible)
    peaks = [usage["peak_over_start"] for usage in found["usages"]]
    results[f"two devices, CUDA_VISIBLE_DEVICES={visible}"] = {"measured": peaks, "cards": found["cards"]}
    assert peaks == [200 * MiB, 900 * MiB]
    assert [usage["first_use"] for usage in found["usages"]] == [False, True]
    assert all(card["same_card"] and card["layers_add_up"] for card in found["cards"])
    assert all(card["used"] == card["driver_used"] and card["source"] == "nvml" for card in found["cards"])


def test_the_second_card_alone_is_not_the_first(results):
    """With only card 1 visible, `cuda:0` is card 1 for the driver too; card 0 is never touched."""
    found = run("1")
    results["two devices, CUDA_VISIBLE_DEVICES=1"] = {"cards": found["cards"]}
    assert [card["card"] for card in found["cards"]] == [1]
    assert found["cards"][0]["same_card"]
    assert found["cards"][0]["used"] == found["cards"][0]["driver_used"]
