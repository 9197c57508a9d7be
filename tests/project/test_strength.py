"""Strengths of adapters on the command line: in effect, or refused before anything is planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import taste
from tests.project.simulated import refused, told


@pytest.fixture
def project(tmp_path, prompts_file, drawer, capsys) -> Path:
    told(capsys, "new", tmp_path / "taste", "--prompts", prompts_file, "--base-model", "resources/demo_model")
    (tmp_path / "mine.safetensors").write_text("mine")
    return tmp_path / "taste"


@pytest.mark.parametrize("strength", ["nan", "inf", "-10.5", "1e9"])
@pytest.mark.parametrize("apart", [True, False])
def test_one_that_no_adapter_can_have_is_refused(project, tmp_path, capsys, strength, apart):
    file = str(tmp_path / "mine.safetensors")
    given = [file, f"--strength={strength}"] if apart else [f"{file}@{strength}"]
    assert "not between -10 and 10" in refused(capsys, "generate", project, "--adapter", *given)
    assert not (project / "round-1" / "plan.json").exists()
    between = f"base,{tmp_path / 'mine.safetensors'}@{strength}"
    assert "not between -10 and 10" in refused(capsys, "compare", project, "--between", between, "--result")


@pytest.mark.parametrize("adapter", [(), ("--adapter", "none")])
def test_one_without_an_adapter_is_refused(project, capsys, adapter):
    said = refused(capsys, "generate", project, *adapter, "--strength", "0.5")
    assert "--strength" in said and "no adapter" in said
    assert not (project / "round-1" / "plan.json").exists()


def test_one_without_a_name_is_that_of_the_adapter_in_use(tmp_path, prompts_file, drawer, capsys):
    (tmp_path / "mine.safetensors").write_text("mine")
    told(
        capsys, "new", tmp_path / "taste", "--prompts", prompts_file, "--base-model", "resources/demo_model",
        "--adapter", tmp_path / "mine.safetensors",
    )  # fmt: skip
    told(capsys, "generate", tmp_path / "taste", "--strength", "0.5")
    plan = json.loads((tmp_path / "taste" / "round-1" / "plan.json").read_text())
    assert plan["adapter"] and plan["strength"] == 0.5


def test_one_of_an_adapter_is_that_of_its_images(project, tmp_path, capsys):
    told(capsys, "generate", project, "--adapter", tmp_path / "mine.safetensors", "--strength", "0.5")
    assert json.loads((project / "round-1" / "plan.json").read_text())["strength"] == 0.5


def test_an_at_sign_in_the_path_of_a_file_is_no_strength(project, tmp_path, capsys):
    file = tmp_path / "me@home" / "mine@2.safetensors"
    file.parent.mkdir()
    file.write_text("mine")
    told(capsys, "generate", project, "--adapter", f"{file}@0.5")
    plan = json.loads((project / "round-1" / "plan.json").read_text())
    kept = tmp_path / "taste" / plan["adapter"]
    assert (kept.read_text(), plan["strength"]) == ("mine", 0.5)
    assert told(capsys, "generate", project, "--adapter", file, "--strength", "0.5")["made"] == 0
    assert "'strong' is not a strength" in refused(capsys, "generate", project, "--adapter", f"{file}@strong")


def test_a_name_that_is_none_is_answered_with_those_that_are(project, tmp_path, prompts_file, capsys):
    said = refused(capsys, "generate", project, "--adapter", "last")
    assert "there is no adapter 'last' here" in said and "known: base, or a file" in said
    told(
        capsys, "new", tmp_path / "begun", "--prompts", prompts_file, "--base-model", "resources/demo_model",
        "--adapter", tmp_path / "mine.safetensors",
    )  # fmt: skip
    assert "known: base, start, last, or a file" in refused(
        capsys, "generate", tmp_path / "begun", "--adapter", "round-1"
    )


@pytest.mark.parametrize("between", ["base", "base,none", "{file},{file}@1"])
@pytest.mark.parametrize("verb", ["compare", "judge"])
def test_what_cannot_be_compared_is_refused_before_images_are_made(
    project, tmp_path, drawer, capsys, between, verb
):
    between = between.format(file=tmp_path / "mine.safetensors")
    assert "two different contestants" in refused(capsys, verb, project, "--between", between)
    assert not drawer.made


def test_what_a_result_does_not_have_is_not_printed(project, capsys):
    capsys.readouterr()
    assert taste.main(["describe", str(project)]) == 0
    said = capsys.readouterr().out
    assert "a drawer" in said and "None" not in said
