"""Cases of where a run works, what it leaves behind, its samples, backups and validations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
from safetensors.numpy import save_file

from tests.house.acts import outcomes as see
from tests.house.acts.bases import SAMPLE, concept, edits, image_folder, paints, pictures, sampled
from tests.house.acts.case import Case, write
from tests.house.acts.model_cases import other_model

BACKED_UP = {"max_steps": 3, "backup_after": 1, "backup_after_unit": "STEP"}
SAVED = {"max_steps": 3, "save_every": 1, "save_every_unit": "STEP"}
VALIDATED = {
    "validation": True,
    "max_steps": 2,
    "validate_after": 1,
    "validate_after_unit": "STEP",
    "concepts": lambda folder: [concept(), concept("VALIDATION", "rejected")],
}
OTHER_SAMPLE = {**SAMPLE, "prompt": "a large cat", "negative_prompt": "a dog"}


def half_a_run(folder: Path) -> None:
    """A run of three steps with a backup after the second, in the folder of the run to come."""
    path = folder / "config.json"
    kept = path.read_text(encoding="utf-8")
    write(folder, pictures, {"max_steps": 3, "backup_after": 2, "backup_after_unit": "STEP"})
    see.run(folder, path)
    (folder / "out.safetensors").unlink()
    path.write_text(kept, encoding="utf-8")


def model_is_there(folder: Path) -> None:
    save_file({"from an earlier run": numpy.zeros(1)}, folder / "out.safetensors")


def lists(folder: Path) -> None:
    """Files of concepts and samples."""
    for name, side in (("one", "chosen"), ("other", "rejected")):
        (folder / f"{name}.json").write_text(json.dumps([concept(side=side)]), encoding="utf-8")
    for name, sample in (("sample", SAMPLE), ("other-sample", OTHER_SAMPLE)):
        (folder / f"{name}.json").write_text(json.dumps([sample]), encoding="utf-8")


PROJECT = [
    Case("training_method", pictures, "FINE_TUNE", see.names, {"unet.gradient_checkpointing": True}),
    Case("seed", pictures, 7, see.weights),
    Case("continue_last_backup", pictures, True, see.steps, {"max_steps": 3}, half_a_run),
    Case("only_cache", pictures, True, see.steps),
    Case("workspace_dir", pictures, lambda folder: str(folder / "elsewhere"), see.files),
    Case("cache_dir", pictures, lambda folder: str(folder / "elsewhere"), see.files),
    Case("train_device", pictures, "cuda:99", see.end),
    Case("train_dtype", pictures, "BFLOAT_16", see.weights),
    # two threads that wait for each other take far longer than one on a busy machine: only the cache is filled
    Case("cpu_threads", pictures, 2, see.cpu_threads, {"only_cache": True}),
    Case("tensorboard", pictures, True, see.files),
    Case("tensorboard_port", pictures, 6007, see.tensorboard),
]
OUTPUT = [
    Case(
        "output_model_destination", pictures, lambda folder: str(folder / "x" / "mine.safetensors"), see.files
    ),
    Case("output_model_format", pictures, "DIFFUSERS_LORA", see.names),
    Case("output_dtype", pictures, "BFLOAT_16", see.dtypes),
    Case("prevent_overwrites", pictures, True, see.check_result, {}, model_is_there),
]
SAMPLES = [
    Case(
        "sample_definition_file_name",
        sampled,
        lambda folder: str(folder / "other-sample.json"),
        see.samples,
        {"samples": None, "sample_definition_file_name": lambda folder: str(folder / "sample.json")},
        lists,
    ),
    Case("samples", sampled, [OTHER_SAMPLE], see.samples),
    Case("sample_model_name", sampled, lambda folder: other_model("STABLE_DIFFUSION_15"), see.samples),
    Case("sample_after", sampled, 2, see.samples, {"max_steps": 2}),
    Case("sample_after_unit", sampled, "EPOCH", see.samples),
    Case("sample_skip_first", sampled, 1, see.samples, {"max_steps": 2}),
    Case("sample_before_training", sampled, True, see.samples),
    Case("sample_image_format", sampled, "PNG", see.files),
    Case("non_ema_sampling", sampled, True, see.samples),
    Case("samples.0.enabled", sampled, False, see.samples),
    Case("samples.0.prompt", sampled, "a blue dog", see.samples),
    Case("samples.0.negative_prompt", sampled, "a blue dog", see.samples),
    Case(
        "samples.0.source_path",
        edits,
        lambda folder: str(image_folder() / "before-other/000.png"),
        see.samples,
    ),
    Case(
        "samples.0.base_image_path",
        paints,
        lambda folder: str(image_folder() / "chosen/002.png"),
        see.samples,
    ),
    Case(
        "samples.0.mask_image_path",
        paints,
        lambda folder: str(image_folder() / "other-masks/000.png"),
        see.samples,
    ),
    Case("samples.0.force_last_timestep", sampled, True, see.samples),
    Case("samples.0.width", sampled, 72, see.samples),
    Case("samples.0.height", sampled, 72, see.samples),
    Case("samples.0.seed", sampled, 43, see.samples),
    Case("samples.0.random_seed", sampled, True, see.samples),
    Case("samples.0.diffusion_steps", sampled, 3, see.samples),
    Case("samples.0.cfg_scale", sampled, 7.0, see.samples),
    Case("samples.0.noise_scheduler", sampled, "EULER_A", see.samples),
]
BACKUPS = [
    Case("backup_after", pictures, 2, see.backups, BACKED_UP),
    Case("backup_after_unit", pictures, "EPOCH", see.backups, BACKED_UP),
    Case(
        "backup_each_tenth", pictures, False, see.backups, {"backup_after": 30, "backup_after_unit": "HOUR"}
    ),
    Case("rolling_backup", pictures, False, see.files, {**BACKED_UP, "rolling_backup_count": 1}),
    Case("rolling_backup_count", pictures, 2, see.files, {**BACKED_UP, "rolling_backup_count": 1}),
    Case("backup_before_save", pictures, True, see.backups),
    Case("save_every", pictures, 2, see.files, SAVED),
    Case("save_every_unit", pictures, "EPOCH", see.files, SAVED),
    Case("save_skip_first", pictures, 1, see.files, SAVED),
    Case("save_filename_prefix", pictures, "mine-", see.files, SAVED),
]
VALIDATION = [
    Case("validation", pictures, False, see.validations, VALIDATED),
    Case("validate_after", pictures, 2, see.validations, VALIDATED),
    Case("validate_after_unit", pictures, "NEVER", see.validations, VALIDATED),
    Case("validation_draws", pictures, 3, see.validations, VALIDATED),
]
CASES = [*PROJECT, *OUTPUT, *SAMPLES, *BACKUPS, *VALIDATION]
