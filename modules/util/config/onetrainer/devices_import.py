"""Import of the devices that train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.foreign.Notes import Notes

Data = dict[str, Any]
DEVICES = ("multi_gpu", "device_indexes")
_USUAL = "cuda"
"""Their device if a file names none."""
_ALL = "there every GPU trains: list them in train_device, such as cuda:0,cuda:1"


def import_devices(given: Mapping[str, Any], full: Mapping[str, Any], notes: Notes) -> Data:
    """The device, or with ``multi_gpu`` the list of all: ``0,1`` of ``cuda`` is ``cuda:0,cuda:1``."""
    made: Data = {"train_device": given["train_device"]} if "train_device" in given else {}
    if full["multi_gpu"] is not True:
        return made
    kind, indexes = str(full.get("train_device", _USUAL)).partition(":")[0], full["device_indexes"]
    if kind != "cuda":
        notes.add("multi_gpu", True, f"several devices train only with CUDA here, not with {kind}")
        return made
    if indexes == "":
        notes.add("multi_gpu", True, _ALL)
        return made
    found = [one.strip() for one in indexes.split(",")] if isinstance(indexes, str) else []
    if not found or not all(one.isdecimal() for one in found) or len({int(one) for one in found}) < len(found):
        notes.add("device_indexes", indexes, "not a list of numbers such as 0,1; set train_device", faulty=True)
        return made
    listed = ",".join(f"{kind}:{int(one)}" for one in found)
    notes.moved("device_indexes", indexes, f"train_device = {listed}", "a list of devices")
    return {"train_device": listed}
