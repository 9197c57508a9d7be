"""Paths of users whom this computer does not have are refused in words, wherever a file of weights is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modules.remote.packing import places_of_files
from modules.spec.registry import FAMILIES
from modules.util.config.load import find_problems
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from modules.util.files.user_path import user_path
from modules.weights.hub_file import check_name, find_file, local_file
from modules.weights.loading import find_source, is_hub_name

NOBODY = "~nosuchuser/model.safetensors"


def test_a_tilde_is_the_users_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert user_path("~/a.png") == tmp_path / "a.png"
    assert user_path("a/~b.png") == Path("a/~b.png")


@pytest.mark.parametrize(
    ("use", "field"),
    [
        (lambda: user_path(NOBODY), None),
        (lambda: local_file(NOBODY), None),
        (lambda: find_file(NOBODY, "vae.model_name"), "vae.model_name"),
        (lambda: check_name(NOBODY, "vae.model_name"), "vae.model_name"),
        (lambda: find_source(NOBODY, FAMILIES["STABLE_DIFFUSION_15"]), "base_model_name"),
    ],
)
def test_an_unknown_user_is_named(use: Callable[[], object], field: str | None) -> None:
    with pytest.raises(UserError, match="this computer has no user 'nosuchuser'") as caught:
        use()
    assert caught.value.field == field and "write the whole path" in str(caught.value)


def test_the_check_of_a_config_names_it_too() -> None:
    config = TrainConfig.from_dict({"model_type": "HI_DREAM_FULL", "base_model_name": NOBODY})
    found = [one for one in find_problems(config).errors if "nosuchuser" in str(one)]
    assert [one.field for one in found] == ["base_model_name"]


def test_what_only_might_be_a_path_is_none() -> None:
    assert not is_hub_name(NOBODY)
    config = TrainConfig.from_dict({"rlhf_rewards": [{"reward": "python", "params": {"path": NOBODY}}]})
    assert not [place for place in places_of_files(config) if place.value == NOBODY]
