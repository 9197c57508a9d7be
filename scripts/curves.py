"""Curves of configs: the noise levels that training draws, and the learning rate over the run.

Reads lines of JSON from stdin, each with `config` (plain data of a config), `steps` (optimizer steps of the run),
`steps_per_epoch` (0 or missing: not known) and `number`. Answers each with a line: the same `number`, `levels` (`drawn`
and `own`, each with `x` and `y`; `size`, `shift`) and `rate` (`x`, `y`).
A curve that cannot be drawn has an `error` instead. Ends at the end of the input.

With --picture it draws the noise levels of every distribution for the documents instead, and ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.trainer.curve_picture import TEXT, density_picture  # noqa: E402
from modules.trainer.curves import level_curves, rate_curve  # noqa: E402
from modules.util.config.TrainConfig import TrainConfig  # noqa: E402
from modules.util.display import command_parser, print_any_text  # noqa: E402
from modules.util.errors import UserError  # noqa: E402
from modules.util.files.result_file import check_result_file, text_with  # noqa: E402
from modules.util.jsonio import parse_json, write_text  # noqa: E402
from scripts.curate import exit_status  # noqa: E402

DRAWN = (
    ("UNIFORM", 0.0, 0.0), ("LOGIT_NORMAL", 0.0, 0.0), ("SIGMOID", 7.0, 0.0), ("HEAVY_TAIL", 1.29, 0.0),
    ("COS_MAP", 0.0, 0.0), ("INVERTED_PARABOLA", 7.7, 0.0), ("BETA", 2.0, 4.0), ("POWER", 3.0, -1.0),
)  # fmt: skip
"""The distributions of the picture, each with a weight and a bias that show its purpose."""


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Both curves of a config."""
    try:
        config, steps = TrainConfig.from_dict(asked["config"]), int(asked["steps"])
        epoch_steps = int(asked.get("steps_per_epoch", 0)) or None
    except UserError as error:
        return {name: {"error": str(error)} for name in ("levels", "rate")}
    return {"levels": _of(lambda: level_curves(config)), "rate": _of(lambda: rate_curve(config, steps, epoch_steps))}


def _of(make: Callable[[], Any]) -> dict[str, Any]:
    try:
        return asdict(make())
    except UserError as error:
        return {"error": str(error)}


def picture() -> str:
    """The densities of all distributions as SVG."""
    made = {}
    for name, weight, bias in DRAWN:
        given = {"timestep_distribution": name, "noising_weight": weight, "noising_bias": bias}
        title = name if not weight else f"{name} {weight:g}, {bias:g}"
        made[title] = level_curves(TrainConfig.from_dict(given)).drawn
    return density_picture(made)


def main(argv: list[str] | None = None) -> int:
    """Answer until there are no more lines, or draw the picture."""
    parser = command_parser(__doc__)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write an SVG of all distributions")
    options = parser.parse_args(argv)
    return exit_status(answer_all if options.picture is None else lambda: write_picture(options.picture))


def write_picture(path: Path) -> None:
    """Write the picture, unless the file holds something else."""
    is_picture = text_with(f'font-family="sans-serif" font-size="11" fill="{TEXT}">')
    check_result_file(path, "--picture", is_picture)
    made = picture()
    check_result_file(path, "--picture", is_picture)
    write_text(path, made)


def answer_all() -> None:
    """Answer the configs on stdin, one on each line."""
    answers = sys.stdout
    for line in sys.stdin:
        asked = parse_json(line, "line with a config")
        with redirect_stdout(sys.stderr):  # a class of the user's may print
            made = answer(asked)
        print(json.dumps({"number": asked.get("number"), **made}), file=answers, flush=True)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
