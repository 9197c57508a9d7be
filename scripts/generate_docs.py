"""Make the documents that follow from the config classes and the registries, or check that they are up to date
(``--check``).
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.util.config.reference import optimizers_page, settings_page, train_config_schema  # noqa: E402
from modules.util.display import print_any_text  # noqa: E402
from modules.util.jsonio import write_text  # noqa: E402


def catalog() -> str:
    """The rewards and accelerators of the registries, as ``modules/util/catalog.py`` reads them."""
    from modules.accelerator.base import ACCELERATORS, asked_parameters
    from modules.reward.base import REWARDS

    rewards = []
    for name, reward in REWARDS.items():
        params = dict(inspect.signature(reward).parameters)
        required = [key for key, one in params.items() if one.default is inspect.Parameter.empty]
        needs = getattr(reward, "needs", "")
        rewards.append(_entry(name, reward, params, required) | {"needs": needs})
    accelerators = []
    for name, kind in ACCELERATORS.items():
        slot = "shared" if kind.stage == "both" else "rollout"
        accelerators.append(_entry(name, kind, *asked_parameters(kind)) | {"slot": slot})
    # the window offers the first one, so those that work immediately come first
    rewards.sort(key=lambda entry: bool(entry["needs"]))
    accelerators.sort(key=lambda entry: bool(entry["required"]))
    return json.dumps({"rewards": rewards, "accelerators": accelerators}, indent=2) + "\n"


def _entry(name: str, thing: object, params: Iterable[str], required: Sequence[str]) -> dict[str, Any]:
    about = (inspect.getdoc(thing) or "").partition("\n")[0].rstrip(".").replace("``", "")
    return {
        "name": name,
        "about": about,
        "params": sorted(params, key=lambda key: key not in required),
        "required": list(required),
    }


DOCUMENTS = {
    "resources/schema/catalog.json": catalog,
    "resources/schema/train_config.json": train_config_schema,
    "docs/config.md": settings_page,
    "docs/optimizers.md": optimizers_page,
}


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Write the documents below ``root``; with ``--check``, print the stale ones and return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a document is out of date")
    check = parser.parse_args(arguments).check
    stale = []
    for name, make in DOCUMENTS.items():
        path, text = root / name, make()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            write_text(path, text)
    for name in stale:
        print(f"{name} is stale: run scripts/generate_docs.py" if check else f"wrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
