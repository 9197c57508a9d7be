"""Judges that like the first contestant, and find that it has lost fidelity and variety."""

import json
import sys

told = json.load(sys.stdin)
count = len(told["images"]) // 2
groups = {one["group"] for one in told["images"]}
print(
    json.dumps(
        {
            "scores": {
                "pickscore": [2.0] * count + [1.0] * count,
                "clip": [20.0 + i % 3 for i in range(count)] + [30.0] * count,
            },
            "spread": {name: 5.0 if name.startswith("0") else 10.0 for name in groups},
            "measure": "vae",
            "missing": {"taste": "no taste has been learned in this project"},
        }
    )
)
