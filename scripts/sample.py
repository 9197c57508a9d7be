"""Make images with a model, with or without adapters; the same seed starts from the same noise.

With --x and --y the images make a grid: one sheet with labels, and a file for each cell. Cells that already exist
with the same settings are not made again.

Exit status: 0 done, 2 something to fix first, 130 stopped.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.util.config.cli_names import add_part_option, known_word, part_settings  # noqa: E402
from modules.util.config.load import find_problems  # noqa: E402
from modules.util.config.rules.sample_rules import check_reading  # noqa: E402
from modules.util.config.SampleConfig import READING, FilledSample, SampleConfig  # noqa: E402
from modules.util.config.TrainConfig import TrainConfig  # noqa: E402
from modules.util.display import counted, print_any_text  # noqa: E402
from modules.util.enum.choices import DataType, NoiseScheduler, PaddingMask, WeightDtype  # noqa: E402
from modules.util.enum.ModelType import ModelType  # noqa: E402
from modules.util.errors import ConfigError, UnsupportedError  # noqa: E402
from modules.util.files.adapter_list import MAX_STRENGTH, named_adapters  # noqa: E402
from modules.util.files.result_file import check_result_folder  # noqa: E402
from modules.util.jsonio import parse_json, read_bytes, write_bytes  # noqa: E402
from modules.util.published_models import find_published  # noqa: E402
from scripts.curate import ProgressLine, exit_status  # noqa: E402

MOST_IMAGES = 10_000
NEWER_OPTIONS: tuple[tuple[str, object], ...] = (
    ("source_resolution", None), ("without", []), ("base_image", None), ("mask_image", None),
    ("force_last_timestep", False),
)  # fmt: skip
UNSAFE = re.compile(r"[^\w .()-]+")

if TYPE_CHECKING:
    import torch

    from modules.model.Model import Model
    from modules.modelSetup.AdapterSwitch import AdapterSwitch
    from modules.modelSetup.BaseModelSetup import BaseModelSetup
    from modules.spec.FamilySpec import FamilySpec
    from modules.trainer.evaluate.sample_grid import SampleGrid


def arguments(argv: list[str] | None) -> argparse.Namespace:
    defaults = SampleConfig()
    parser = argparse.ArgumentParser(description=__doc__)
    # argparse takes -1,0,1 for an option: to it, only single numbers are values
    parser._negative_number_matcher = re.compile(r"-\.?\d")
    parser.add_argument(
        "--model", required=True, help="diffusers folder, safetensors file or Hugging Face name"
    )
    parser.add_argument(
        "--model-type", type=str.upper, default="STABLE_DIFFUSION_15", help=f"one of {', '.join(ModelType)}"
    )
    add_parts(parser)
    add_adapters(parser)
    add_strengths(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", action="append", help="prompt of an image; can be repeated")
    what.add_argument(
        "--requests",
        metavar="FILE",
        help=(
            "one JSON object per line with the settings of a sample (prompt, seed, width, ...), - for "
            "stdin; each image is written to stdout as a JSON line {number, png}, as soon as it is made"
        ),
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=1,
        help="number of images made at once, if they differ only in prompt and seed (1)",
    )
    parser.add_argument(
        "--negative-prompt",
        default="",
        help="negative prompt; it has an effect with models that are not distilled, at scales above 1",
    )
    add_reading(parser)
    add_sources(parser)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--count", type=int, default=1, help="images for each prompt, with consecutive seeds")
    parser.add_argument("--steps", type=int, help="number of denoising steps; the family's usual number by default")
    parser.add_argument("--cfg-scale", type=float, help="guidance scale; the family's usual scale by default")
    parser.add_argument("--width", type=int, help="width in pixels; the family's usual width by default")
    parser.add_argument("--height", type=int, help="height in pixels; the family's usual height by default")
    parser.add_argument(
        "--scheduler", default=defaults.noise_scheduler.value, help=f"sampler: {', '.join(NoiseScheduler)}"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--dtype",
        type=str.upper,
        help="number format: FLOAT_32, BFLOAT_16 or FLOAT_16; by default BFLOAT_16 on a CUDA device, otherwise "
        "FLOAT_32",
    )
    add_output(parser)
    add_axes(parser)
    return parser.parse_args(argv)


def add_parts(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where parts of the model come from, how they are kept, and which are left out."""
    add_part_option(parser)
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="PART",
        help="make images without this text encoder, like PART.include=false in a config; can be repeated",
    )
    parser.add_argument(
        "--weight-dtype",
        action="append",
        default=[],
        metavar="PART=TYPE",
        help=f"number format of a part's weights, like PART.weight_dtype in a config: {', '.join(WeightDtype)}",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options for the target of the images."""
    parser.add_argument("--out", type=Path, default=Path("samples"), help="folder for the images")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace images of the same names; otherwise new images get a number",
    )


def add_adapters(parser: argparse.ArgumentParser) -> None:
    """Add the options for adapters and embeddings."""
    parser.add_argument(
        "--adapter", action="append", default=[], metavar="FILE[=STRENGTH]",
        help="an adapter file, in any of the usual layouts, or the folder of a run for its last save; can be repeated, "
        "and several files can be separated by ;",
    )  # fmt: skip
    parser.add_argument(
        "--embedding", action="append", default=[], metavar="WORD=FILE",
        help="the file of a trained embedding and the word that stands for it in prompts; can be repeated, and several "
        "can be separated by ;",
    )  # fmt: skip


def add_axes(parser: argparse.ArgumentParser) -> None:
    """Add the options of a grid."""
    for axis, where in (("--x", "columns"), ("--y", "rows")):
        parser.add_argument(
            axis, metavar="AXIS=VALUES",
            help=f"{where} of a grid: checkpoint=FILE;RUN;none (a run's folder stands for all its saves), "
            "strength=0,0.5,1, prompt=ONE|OTHER, seed=1-4, steps=10,20, cfg=1,4.5 or sampler=DDIM,EULER",
        )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="list the images that would be made, without loading a model"
    )


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the options for models that edit images."""
    parser.add_argument(
        "--source", type=Path, help="source image for models that edit images; the prompt is the instruction"
    )
    parser.add_argument(
        "--source-resolution",
        type=int,
        help="scale source images to about the area of a square with this side in pixels; by default to the area of "
        "the image that is made, at most 1024 x 1024",
    )
    parser.add_argument("--base-image", type=Path, help="image that an inpainting model paints into")
    parser.add_argument("--mask-image", type=Path, help="mask of that image: white is painted, black is kept")
    parser.add_argument(
        "--force-last-timestep",
        action="store_true",
        help="start at the noisiest timestep, for models trained on pure noise whose files do not say so",
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options for reading prompts."""
    parser.add_argument(
        "--prompt-weighting",
        action="store_true",
        help="read brackets in prompts as emphasis, such as (words:1.3)",
    )
    parser.add_argument(
        "--max-prompt-chunks",
        type=int,
        default=TrainConfig.model_fields["max_prompt_chunks"].default,
        help="maximum number of chunks of a prompt, for families with chunks",
    )
    parser.add_argument(
        "--layer-skip", action="append", default=[], metavar="PART=N",
        help="take a CLIP text encoder's states this many layers earlier than usual, like PART.layer_skip in a config; "
        "clip skip n of other programs is n - 1 here",
    )  # fmt: skip
    parser.add_argument(
        "--sequence-length",
        action="append",
        default=[],
        metavar="PART=N",
        help="maximum number of tokens that a text encoder reads of a prompt, like PART.sequence_length in a config",
    )
    parser.add_argument(
        "--attention-mask",
        type=str.upper,
        help=(
            "MASKED hides the padding after prompts from the transformer, SEEN shows it, like "
            "transformer.attention_mask in a config; by default as in the published model"
        ),
    )


def add_strengths(parser: argparse.ArgumentParser) -> None:
    """Add the options for strengths of adapters."""
    parser.add_argument(
        "--strength", type=float, default=1.0, help="multiplies the strengths of all adapters, 1 by default"
    )
    parser.add_argument(
        "--strengths",
        metavar="S,S",
        help="make every image at each of these strengths, and strengths.png with a column for each",
    )


def samples(options: argparse.Namespace) -> list[SampleConfig]:
    """One checked sample for each image."""
    if not 1 <= options.count <= MOST_IMAGES:
        raise ConfigError(f"{options.count} is not between 1 and {MOST_IMAGES}", "--count")
    if not 1 <= options.max_prompt_chunks <= 8:
        raise ConfigError(f"{options.max_prompt_chunks} is not between 1 and 8", "--max-prompt-chunks")
    if not 1 <= options.batch_size <= 256:
        raise ConfigError(f"{options.batch_size} is not between 1 and 256", "--batch-size")
    if options.source_resolution is not None and not 64 <= options.source_resolution <= 1024:
        raise ConfigError(f"{options.source_resolution} is not between 64 and 1024", "--source-resolution")
    if not -10.0 <= options.strength <= 10.0:
        raise ConfigError(f"{options.strength} is not between -10 and 10", "--strength")
    factors = strengths_of(options)
    for _, strength in adapters_of(options):
        largest = max(factors, key=abs)
        if abs(strength * largest) > MAX_STRENGTH:
            raise ConfigError(f"{strength:g} times {largest:g} is not between -10 and 10", "--adapter")
    embeddings_of(options)
    if options.requests is not None:
        return read_requests(options.requests)
    return [
        SampleConfig.from_dict(
            {
                "prompt": prompt,
                "negative_prompt": options.negative_prompt,
                "source_path": str(options.source or ""),
                "base_image_path": str(options.base_image or ""),
                "mask_image_path": str(options.mask_image or ""),
                "force_last_timestep": options.force_last_timestep,
                "seed": options.seed + number,
                "diffusion_steps": options.steps,
                "cfg_scale": options.cfg_scale,
                "width": options.width,
                "height": options.height,
                "noise_scheduler": options.scheduler,
            }
        )
        for prompt in options.prompt
        for number in range(options.count)
    ]


def adapters_of(options: argparse.Namespace) -> list[tuple[Path, float]]:
    """The adapter files and their strengths; of the folder of a run, what it saved last."""
    from modules.trainer.evaluate.grid_axes import last_save

    found = [one for text in options.adapter for one in named_adapters(text, "--adapter", folders=True)]
    return [(last_save(path, "--adapter"), strength) for path, strength in found]


def embeddings_of(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """The words of prompts that stand for the vectors of a file."""
    found = []
    for text in filter(None, (one.strip() for given in options.embedding for one in given.split(";"))):
        word, _, name = (piece.strip() for piece in text.partition("="))
        if not word or not name:
            raise ConfigError(f"{text!r} is not WORD=FILE", "--embedding", "<my-cat>=my-cat.safetensors")
        if not Path(name).is_file():
            raise ConfigError(f"{name} does not exist", "--embedding", "check the path")
        found.append((word, Path(name)))
    return found


def strengths_of(options: argparse.Namespace) -> list[float]:
    """The strengths that are asked for; one without ``--strengths``."""
    if options.strengths is None:
        return [float(options.strength)]
    if not options.adapter or options.requests is not None:
        raise ConfigError(
            "there is no adapter to vary the strength of",
            "--strengths",
            "add --adapter FILE, and use --prompt",
        )
    try:
        found = list(dict.fromkeys(float(text) for text in options.strengths.split(",")))
    except ValueError as error:
        raise ConfigError(
            f"{options.strengths!r} is not a list of numbers", "--strengths", "for example 0,0.5,1"
        ) from error
    wrong = next((one for one in found if not -10.0 <= one <= 10.0), None)
    if wrong is not None:
        raise ConfigError(f"{wrong} is not between -10 and 10", "--strengths")
    return found


def read_requests(source: str) -> list[SampleConfig]:
    """The samples of a file with one per line; ``-`` reads stdin to its end."""
    data = sys.stdin.buffer.read() if source == "-" else read_bytes(source, "request file")
    lines = [line for line in data.splitlines() if line.strip()]
    if not 1 <= len(lines) <= MOST_IMAGES:
        raise ConfigError(f"{len(lines)} requests; 1 to {MOST_IMAGES} are possible", "--requests")
    return [
        SampleConfig.from_dict(parse_json(line, f"text of request {number}"))
        for number, line in enumerate(lines, start=1)
    ]


def weight_types(options: argparse.Namespace) -> dict[str, WeightDtype]:
    """The parts whose weights are kept in a number format of their own.

    Raises:
        ConfigError: a part or format there is not.
    """
    found: dict[str, WeightDtype] = {}
    for part, name in part_settings(
        options.weight_dtype, "--weight-dtype", "weight_dtype", options.model_type
    ).items():
        # what surrounds an autoencoder's blocks is nearly all of it
        known = [
            kind
            for kind in WeightDtype
            if part != ModelType(options.model_type).parts[-1] or not kind.quantized
        ]
        if name not in known:
            raise ConfigError(
                f"weights of the {part} cannot be kept as {name}",
                "--weight-dtype",
                f"known: {', '.join(known)}",
            )
        found[part] = WeightDtype(name)
    return found


def left_out(options: argparse.Namespace) -> tuple[str, ...]:
    """The text encoders that are not used.

    Raises:
        ConfigError: a part that the family cannot do without, or does not have.
    """
    spec = ModelType(options.model_type).spec
    known = spec.optional_encoders
    for part in options.without:
        if part not in known:
            hint = f"possible: {', '.join(known)}" if known else "leave this option out"
            raise ConfigError(
                f"{part!r} is not a text encoder that {spec.label} can do without", "--without", hint
            )
    return tuple(dict.fromkeys(options.without))


def load(options: argparse.Namespace, setup: BaseModelSetup, dtype: torch.dtype) -> Model:
    """The model, its parts from where and in the number formats that are asked for."""
    from modules.model.compact import quantize
    from modules.model.dtypes import PartDtypes, torch_dtype
    from modules.modelSetup import training

    if options.prompt_weighting and not setup.spec.prompt_weighting:
        raise UnsupportedError(
            f"the text encoder of {setup.spec.label} does not understand emphasis in prompts",
            "--prompt-weighting",
            "leave it out; this model reads prompts as plain language",
        )
    reading, kinds = reading_config(options), weight_types(options)
    weights = {part: dtype if kind.quantized else torch_dtype(kind) for part, kind in kinds.items()}
    sources = part_settings(options.part, "--part", "model_name", options.model_type)
    parts = training.without_encoders((part.name for part in setup.spec.parts), left_out(options))
    model = setup.load(
        options.model, PartDtypes(weights=weights, default=dtype, compute=dtype), parts, part_sources=sources
    )
    for part, kind in kinds.items():
        if kind.quantized and part in model.modules():
            quantize(model.module(part), kind.value, dtype)
    model.prompt_chunks = options.max_prompt_chunks if setup.spec.chunks_prompts else 1
    model.prompt_weighting = options.prompt_weighting
    training.read_as_told(model, reading)
    model.layer_skips = skipped_layers(options, setup, model)
    return model


def reading_config(options: argparse.Namespace) -> TrainConfig:
    """The settings of a run that reads as many tokens and hides padding as is asked for.

    Raises:
        UserError: that such a run would have too.
    """
    lengths = part_settings(
        options.sequence_length, "--sequence-length", "sequence_length", options.model_type
    )
    family = ModelType(options.model_type)
    given: dict[str, dict[str, object]] = {}
    for part, text in lengths.items():
        if part not in family.text_encoders:
            hint = f"text encoders of {family.label}: {', '.join(family.text_encoders)}"
            raise ConfigError(f"{part} reads no prompts", "--sequence-length", hint)
        if not text.isdecimal():
            raise ConfigError(f"{text!r} is not a number of tokens", f"--sequence-length {part}")
        given[part] = {"sequence_length": int(text)}
    if options.attention_mask is not None:
        if family.denoiser != "transformer":
            raise UnsupportedError(
                f"the {family.denoiser} of {family.label} hides no padding",
                "--attention-mask",
                "leave it out",
            )
        given["transformer"] = {"attention_mask": options.attention_mask}
    config = TrainConfig.from_dict({"model_type": options.model_type, **given})
    told = {f"{part}.{setting}" for part, settings in given.items() for setting in settings}
    for error in find_problems(config).errors:
        if error.field in told:
            raise error
    return config


def skipped_layers(options: argparse.Namespace, setup: BaseModelSetup, model: Model) -> dict[str, int]:
    """Return how many layers earlier each text encoder is read.

    Raises:
        ConfigError: a part whose layers cannot be skipped, or a number it does not have.
    """
    from modules.modelSetup.training import checked_skips

    told = part_settings(options.layer_skip, "--layer-skip", "layer_skip", options.model_type)
    known, wanted = setup.spec.skips_layers_of, {}
    for part, text in told.items():
        if part not in known:
            hint = f"possible: {', '.join(known)}" if known else f"{setup.spec.label} has no part that can"
            raise ConfigError(f"layers of {part} cannot be skipped", "--layer-skip", hint)
        if not text.isdecimal():
            raise ConfigError(f"{text!r} is not a number of layers", f"--layer-skip {part}", "1 is usual")
        wanted[part] = int(text)
    return checked_skips(model, wanted, "--layer-skip {}")


def warn_of_unread(setup: BaseModelSetup, filled: list[FilledSample], say: Callable[[str], None]) -> None:
    """Say that negative prompts are given and not read."""
    sample = next((sample for sample in filled if sample.negative_prompt.strip()), None)
    if sample is None:
        return
    spec = setup.spec
    reason = f"{spec.label} has its guidance built in" if spec.embeds_guidance else spec.unread_negatives
    if not reason and sample.cfg_scale <= 1.0:
        reason = f"there is no guidance at a scale of {sample.cfg_scale:g}"
    if reason:
        say(f"warning: --negative-prompt is not read: {reason}")


class Ready(NamedTuple):
    """A model that is loaded, once, and what it is asked for."""

    setup: BaseModelSetup
    model: Model
    switch: AdapterSwitch
    filled: list[FilledSample]


def place_of(options: argparse.Namespace) -> tuple[torch.device, str]:
    """The device, and the number format there."""
    from modules.trainer.distributed import choose_only_device

    device = choose_only_device(options.device)
    usual = DataType.BFLOAT_16 if device.type == "cuda" else DataType.FLOAT_32
    return device, options.dtype or usual


def filled_samples(
    options: argparse.Namespace, spec: FamilySpec, wanted: list[SampleConfig]
) -> list[FilledSample]:
    """Samples with the usual values of the family and the model where they leave something open."""
    sources = part_settings(options.part, "--part", "model_name", options.model_type)
    known = find_published(spec.key, sources.get(spec.denoiser) or options.model)
    return [sample.filled(spec, known) for sample in wanted]


def ready(options: argparse.Namespace, wanted: list[SampleConfig]) -> Ready:
    """Check the samples and load the model."""
    from modules.model.dtypes import torch_dtype
    from modules.modelSetup.AdapterSwitch import AdapterSwitch
    from modules.modelSetup.registry import create_model_setup
    from modules.modelSetup.sample_images import check_sample, unguided
    from modules.trainer.evaluate.sample_painting import check_painting
    from modules.trainer.evaluate.sample_sources import check_sample_sources

    say = partial(print, file=sys.stderr, flush=True)  # programs read stdout as one image after another
    setup = create_model_setup(options.model_type)
    device, number_type = place_of(options)
    dtype = torch_dtype(number_type, "--dtype")
    filled = filled_samples(options, setup.spec, wanted)
    warn_of_unread(setup, filled, say)
    check_sample_sources(setup.spec, wanted)
    check_painting(setup.spec, wanted)
    check_reading(ModelType(options.model_type), wanted)
    model = load(options, setup, dtype)
    for sample in filled:
        check_sample(setup, model, sample)
    if told := unguided(model, max(sample.cfg_scale for sample in filled)):
        say(f"warning: {told}")
    switch = AdapterSwitch(model, device, lambda text: say(f"note: {text}"), embeddings_of(options))
    return Ready(setup, model, switch, filled)


def make(options: argparse.Namespace, wanted: list[SampleConfig]) -> Iterator[tuple[int, bytes]]:
    """Load and sample; the number of each image and its PNG file, as they are made."""
    adapters = adapters_of(options)
    setup, model, switch, filled = ready(options, wanted)
    for turn, strength in enumerate(strengths_of(options)):
        chosen = [(path, own * strength) for path, own in adapters]
        switch.use(chosen)
        for number, png in sampled(setup, model, filled, options, adapter_names(chosen)):
            yield turn * len(filled) + number, png


def adapter_names(chosen: Sequence[tuple[Path, float]]) -> str:
    """Return the names of the adapters in the metadata of an image."""
    names = [(UNSAFE.sub("", path.stem), strength) for path, strength in chosen]
    return " + ".join(name + ("" if strength == 1.0 else f" ({strength:g})") for name, strength in names)


def grid_of(options: argparse.Namespace) -> SampleGrid:
    """The grid that is asked for, checked."""
    from modules.trainer.evaluate.grid_axes import Cell, read_axis
    from modules.trainer.evaluate.sample_grid import SampleGrid

    x, y = (
        read_axis(text, name) if text else None for text, name in ((options.x, "--x"), (options.y, "--y"))
    )
    axes = {axis.name for axis in (x, y) if axis is not None}
    prompts = options.prompt or []
    if (
        options.requests is not None
        or options.strengths is not None
        or options.count != 1
        or len(prompts) > 1
    ):
        raise ConfigError(
            "a grid has one prompt, one strength and one seed, unless one of them is an axis",
            "--x",
            "use the axes prompt, strength and seed instead of --requests, --strengths, --count or several --prompt",
        )
    if ("prompt" in axes) == bool(prompts):
        raise ConfigError("give one prompt, or an axis of prompts", "--prompt", "--x 'prompt=a cat|a dog'")
    options.prompt = prompts or [""]
    (sample,) = samples(options)
    adapters = tuple(adapters_of(options))
    if "strength" in axes and not adapters and not axes & {"checkpoint", "adapter"}:
        raise ConfigError("there is no adapter to vary the strength of", "--x", "add --adapter FILE")
    own = {
        "adapter",
        "embedding",
        "strength",
        "strengths",
        "prompt",
        "requests",
        "batch_size",
        "out",
        "x",
        "y",
    }
    settings = {
        name: value
        for name, value in vars(options).items()
        if name not in {*own, "dry_run", "count", "overwrite"}
        # images of versions without these options are still known
        and (name, value) not in NEWER_OPTIONS
    }
    device, number_type = place_of(options)
    (usual,) = filled_samples(options, ModelType(options.model_type).spec, [sample])
    settings |= {
        "device": device.type, "dtype": str(number_type), "size": usual.size, "steps": usual.diffusion_steps,
        "cfg": usual.cfg_scale, "sampler": str(usual.noise_scheduler),
    }  # fmt: skip
    embeddings = embeddings_of(options)
    parts = part_settings(options.part, "--part", "model_name", options.model_type)
    files = [Path(name) for name in (options.model, *parts.values())] + [path for _, path in embeddings]
    return SampleGrid(
        Cell(sample, adapters, options.strength), x, y, options.out,
        settings | {"words": [word for word, _ in embeddings]}, files,
    )  # fmt: skip


def run_grid(options: argparse.Namespace, progress: ProgressLine) -> None:
    """Make what is missing of a grid, and its sheet."""
    grid = grid_of(options)
    todo, total = grid.missing(), grid.total()
    if options.dry_run:
        for one in todo:
            print(one.path)
        print(f"{len(todo)} of {counted(total, 'image')} would be made")
        return
    if todo:
        made = ready(options, [one.cell.sample for one in todo])
        number = 0
        for key, group in groupby(todo, key=lambda one: one.cell.chosen()):
            cells = list(group)
            made.switch.use(key)
            batch = made.filled[number : number + len(cells)]
            images = sampled(made.setup, made.model, batch, options, adapter_names(key))
            for (_, png), one in zip(images, cells, strict=True):
                write_bytes(one.path, png)
                number += 1
                progress.count(total - len(todo) + number, total, one.label)
    kept = "; the others already existed" if len(todo) < total else ""
    print(f"{len(todo)} of {counted(total, 'image')} made{kept}")
    print(grid.write_sheet())


def sampled(
    setup: BaseModelSetup,
    model: Model,
    filled: list[FilledSample],
    options: argparse.Namespace,
    adapter: str,
) -> Iterator[tuple[int, bytes]]:
    """Neighbours that differ in prompt and seed alone are made together, at most as many as ``--batch-size`` says."""
    from modules.dataLoader.create import sides_multiple
    from modules.modelSetup import sample_images
    from modules.modelSetup.sample_images import SampleRequest
    from modules.trainer.evaluate.image_files import encode_image, parameters_text
    from modules.trainer.evaluate.sample_painting import painting
    from modules.trainer.evaluate.sample_sources import sample_sources

    start = 0
    while start < len(filled):
        sources = sample_sources(filled[start], sides_multiple(setup, model), options.source_resolution)
        painted = painting(filled[start], model.latent_factor)
        first = SampleRequest.of(filled[start], 0, sources, painted)
        stop = start + 1
        while stop < min(len(filled), start + options.batch_size) and _alike(filled[stop], filled[start]):
            stop += 1
        batch = filled[start:stop]
        request = replace(
            first,
            prompts=[sample.prompt for sample in batch],
            seeds=[sample.config.seed for sample in batch],
            batch_size=options.batch_size,
        )
        for sample, rgb_CHW in zip(batch, sample_images.sample(setup, model, request), strict=True):
            text = parameters_text(sample, sample.config.seed, model.short_name, adapter)
            yield start, encode_image(rgb_CHW, ".png", text)
            start += 1


def _alike(one: FilledSample, other: FilledSample) -> bool:
    names = ("source_path", "base_image_path", "mask_image_path", "force_last_timestep")
    alike = all(getattr(one.config, name) == getattr(other.config, name) for name in (*names, *READING))
    return alike and replace(one, prompt="", config=other.config) == replace(other, prompt="")


def target_of(options: argparse.Namespace, name: str) -> Path:
    """Return the file for an image: ``name.png``, or the first of ``name-2.png``, ``name-3.png``... where no
    file is.
    """
    path: Path = options.out / name
    if options.overwrite:
        return path
    tried = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return next(one for one in chain([path], tried) if not os.path.lexists(one))


def run(options: argparse.Namespace, progress: ProgressLine) -> None:
    known_word(options.model_type, ModelType, "--model-type", "family")
    known_word(options.dtype, DataType, "--dtype", "type")
    known_word(options.attention_mask, PaddingMask, "--attention-mask", "choice")
    options.without = list(left_out(options))
    if options.requests is None and not options.dry_run:
        check_result_folder(options.out, "--out")
    if options.x or options.y:
        run_grid(options, progress)
        return
    if options.prompt is None and options.requests is None:
        raise ConfigError("there is no prompt", "--prompt", "add --prompt TEXT")
    wanted = samples(options)
    strengths, made = strengths_of(options), []
    if options.dry_run:
        print(f"{counted(len(wanted) * len(strengths), 'image')} would be made")
        return
    for number, png in make(options, wanted):
        if options.requests is not None:
            print(json.dumps({"number": number, "png": base64.b64encode(png).decode()}), flush=True)
        else:
            turn, place = divmod(number, len(wanted))
            at = f"-at-{strengths[turn]:g}" if options.strengths is not None else ""
            path = target_of(options, f"{place:04d}-{wanted[place].seed}{at}.png")
            write_bytes(path, png)
            print(path)
            made.append(path)
    if options.strengths is not None:
        from modules.trainer.evaluate.grid_sheet import strength_grid

        sheet = target_of(options, "strengths.png")
        write_bytes(sheet, strength_grid(made, strengths))
        print(sheet)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    progress = ProgressLine()
    return exit_status(lambda: run(options, progress), progress)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
