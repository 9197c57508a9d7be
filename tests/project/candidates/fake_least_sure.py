"""Chooses the last images of every group, next to those that were chosen before."""

import json
import sys

told = json.load(sys.stdin)
assert told["taste"].endswith("taste.safetensors"), told["taste"]
rows = []
for one in told["groups"]:
    others = [place for place in range(len(one["images"])) if place not in one["chosen"]]
    left = told["count"] - len(one["chosen"])
    rows.append(sorted([*one["chosen"], *others[len(others) - left :]]))
print("features: 1/1 images", file=sys.stderr)
print(json.dumps({"chosen": rows}))
