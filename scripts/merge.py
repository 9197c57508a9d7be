"""Merge LoRAs into a model or into one LoRA, or extract the difference of two models as a LoRA.

Nothing is overwritten without --overwrite, and no input is ever changed. Other layouts: `convert_model.py`.

Exit status: 0 done, 2 something to fix first, 130 stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.tools.catalog import MERGE_TOOLS  # noqa: E402
from modules.util.display import command_parser, print_any_text  # noqa: E402
from modules.util.errors import ConfigError  # noqa: E402
from modules.util.files.adapter_list import named_adapters  # noqa: E402
from scripts.curate import ProgressLine, exit_status  # noqa: E402

Options = argparse.Namespace
MAX_RANK = 4096


def adapters_of(options: Options) -> list[tuple[Path, float]]:
    """Parse files and strengths such as ``a.safetensors=0.5; b.safetensors``."""
    return named_adapters(options.adapters, "--adapters")


def check(options: Options) -> None:
    """Check everything that can be checked before a model is read."""
    from modules.modelSetup import converting

    rank = getattr(options, "rank", None)
    if rank is not None and not 1 <= rank <= MAX_RANK:
        raise ConfigError(f"{rank} is not between 1 and {MAX_RANK}", "--rank")
    inputs = [Path(getattr(options, name)) for name in ("base", "tuned") if getattr(options, name, None)]
    if getattr(options, "adapters", None):
        inputs += [path for path, _ in adapters_of(options)]
    if not options.dry_run:
        converting.clear_leftovers(options.target)
    for source in inputs:
        converting.check_target(
            options.target, source, options.overwrite, options.to == "DIFFUSERS", "--overwrite"
        )


def report(text: str) -> None:
    print(text, flush=True)


def run_model(options: Options, progress: ProgressLine) -> None:
    from modules.adapter.formats import read_adapter
    from modules.model.dtypes import torch_dtype
    from modules.modelSetup import converting
    from modules.modelSetup.registry import create_model_setup

    setup = create_model_setup(options.family)
    report(f"reading {options.base}")
    dtype = torch_dtype(options.dtype, "--dtype") if options.dtype else None
    model = converting.load_lazily(options.base, setup, options.to, False, {})
    files = []
    for path, strength in adapters_of(options):
        file = read_adapter(path, model)
        for note in (*file.notes, *file.left_out()):
            report(note)
        report(f"{path}: {file.kind} on {len(file.layers)} layers, strength {strength:g}")
        converting.report_lost_layers(model, file, options.to, report)
        files.append((file, strength))
    converting.merge(model, files, dtype)
    if not options.dry_run:
        converting.write_model(model, options.target, options.to, dtype, report, options.overwrite)


def run_adapters(options: Options, progress: ProgressLine) -> None:
    from modules.model.dtypes import torch_dtype
    from modules.modelSetup import combining

    made = combining.add_adapters(
        adapters_of(options), options.family, Path(options.base) if options.base else None, options.rank
    )
    finish(options, made, torch_dtype(options.dtype, "--dtype"))


def run_extract(options: Options, progress: ProgressLine) -> None:
    from modules.model.dtypes import torch_dtype
    from modules.modelSetup import combining
    made = combining.extract_adapter(options.base, options.tuned, options.family, options.rank, progress.count)
    finish(options, made, torch_dtype(options.dtype, "--dtype"))


def finish(options: Options, made: object, dtype: object) -> None:
    from modules.modelSetup import combining

    assert isinstance(made, combining.Made)
    for note in made.notes:
        report(note)
    ranks = sorted({layer.rank for layer in made.layers.values()})
    shown = f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
    report(f"LORA of rank {shown} on {len(made.layers)} layers")
    if not options.dry_run:
        combining.write_adapter(
            made, options.target, options.to, dtype, report, options.overwrite  # type: ignore[arg-type]
        )


def make_parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    runs = {"model": run_model, "adapters": run_adapters, "extract": run_extract}
    for spec in MERGE_TOOLS:
        spec.add_command(verbs, runs[spec.verb])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; see ``--help``."""
    options = make_parser().parse_args(arguments)
    progress = ProgressLine()

    def work() -> None:
        check(options)
        options.run(options, progress)
        progress.end()
        print("nothing was written" if options.dry_run else options.target)

    return exit_status(work, progress)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
