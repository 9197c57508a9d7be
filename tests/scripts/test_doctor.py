"""The command that looks at a computer: each fault with a cure, and an exit status."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.runner import doctor
from modules.util.config.SecretsConfig import SecretsConfig
from scripts.doctor import main


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A computer without a card, a screen and a token, with settings of its own."""
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    monkeypatch.setattr(doctor, "_nvidia", lambda: None)
    monkeypatch.setattr(doctor, "_packages", lambda: doctor.Finding("packages", doctor.GOOD, "all"))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    ended = main(["--json", *arguments])
    return ended, {one["what"]: one for one in json.loads(capsys.readouterr().out)}


def test_warnings_alone_end_with_0_and_have_cures(capsys: pytest.CaptureFixture[str]) -> None:
    ended, seen = found(capsys)
    assert ended == 0
    assert seen["Python"]["state"] == "good"
    assert seen["graphics card"]["state"] == seen["Hugging Face token"]["state"] == "warning"
    assert all(one["cure"] for one in seen.values() if one["state"] != "good")
    assert main([]) == 0
    assert "-> only gated models" in capsys.readouterr().out


def test_a_card_without_a_torch_for_it_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_nvidia", lambda: ["RTX 4090, 24564 MiB, driver 580.65"])
    monkeypatch.setattr(doctor, "_cuda_of_torch", lambda: (13, 0))
    for build, ended in (("2.13.0+cpu", 2), ("2.13.0+cu130", 0)):
        monkeypatch.setattr(doctor, "_version", lambda package, build=build: build)
        code, seen = found(capsys)
        assert code == ended
        assert "RTX 4090" in seen["graphics card"]["found"]
        assert ("without CUDA" in seen["graphics card"]["cure"]) is (ended == 2)


def test_a_folder_that_cannot_be_written_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    code, seen = found(capsys, "--folder", str(tmp_path / "file" / "within"))
    assert code == 2
    assert seen[f"folder {tmp_path / 'file' / 'within'}"]["cure"]
    assert found(capsys, "--folder", str(tmp_path / "new" / "folder"))[0] == 0
    assert not (tmp_path / "new").exists()
    code, seen = found(capsys, "--folder", "x" * 300)
    assert code == 2 and "is too long" in seen["folder " + "x" * 300]["found"]


def test_a_token_is_found_and_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    SecretsConfig(huggingface_token="hf_secret").save()
    assert main(["--json"]) == 0
    text = capsys.readouterr().out
    assert "hf_secret" not in text
    (token,) = [one for one in json.loads(text) if one["what"] == "Hugging Face token"]
    assert token["state"] == "good"


def test_little_space_and_an_old_python_are_faults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = doctor.shutil.disk_usage(doctor.ROOT)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage._replace(free=10**9))
    monkeypatch.setattr(doctor, "OLDEST_PYTHON", (99, 0))
    code, seen = found(capsys)
    assert code == 2
    assert seen["disk"]["state"] == seen["Python"]["state"] == "fault"


def test_packages_are_compared_with_their_pins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    there = metadata.version("numpy")
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    for text, state in (
        (f"numpy=={there}\n", "good"),
        ("numpy==0.1\n", "warning"),
        ("no-such-package==1.0  # pinned\n", "fault"),
    ):
        (tmp_path / "requirements.txt").write_text(text)
        assert doctor._packages().state == state


RECORDED = {
    "NVIDIA GeForce RTX 4090, 24564, 560.35.03\n": ["NVIDIA GeForce RTX 4090, 24564 MiB, driver 560.35.03"],
    "NVIDIA H100 80GB HBM3, 81559, 580.82.07\nTesla T4, 15360, 580.82.07\n": [
        "NVIDIA H100 80GB HBM3, 81559 MiB, driver 580.82.07", "Tesla T4, 15360 MiB, driver 580.82.07",
    ],
    "NVIDIA A100-SXM4-40GB, [N/A], 470.57.02\n": ["NVIDIA A100-SXM4-40GB, [N/A] MiB, driver 470.57.02"],
    "\n": [],
}  # fmt: skip
"""What ``nvidia-smi`` writes, and what is read of it."""


def say(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let ``nvidia-smi`` write a text."""
    monkeypatch.undo()
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    done = subprocess.CompletedProcess([], 0, stdout=text, stderr="")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *given, **named: done)


@pytest.mark.parametrize("text", RECORDED)
def test_what_the_driver_says_is_read(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, text)
    assert doctor._nvidia() == RECORDED[text]


def test_endless_words_of_a_driver_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, ("x" * 10**5 + "\n") * 1000)
    cards = doctor._nvidia()
    assert cards is not None
    assert len(cards) == 64
    assert max(map(len, cards)) < 300


@pytest.mark.parametrize(
    ("driver", "built", "state", "cure"),
    [
        ("560.35.03", (13, 0), "fault", "needs driver 580 or newer"),
        ("580.65.06", (13, 0), "good", ""),
        ("524.99", (12, 8), "fault", "needs driver 525 or newer"),
        ("525.60.13", (12, 8), "good", ""),
        ("560.35.03", (14, 1), "warning", "the oldest driver for CUDA 14.1 is not known here"),
        ("[N/A]", (12, 8), "warning", "install the driver again"),
        ("580.65.06", None, "warning", "scripts/setup.sh"),
    ],
)
def test_the_driver_is_compared_with_the_cuda_of_torch(
    driver: str, built: tuple[int, int] | None, state: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, f"NVIDIA GeForce RTX 4090, 24564, {driver}\n")
    monkeypatch.setattr(doctor, "_version", lambda package: "2.13.0")
    monkeypatch.setattr(doctor, "_cuda_of_torch", lambda: built)
    finding = doctor._card()
    assert finding.state == state
    assert cure in finding.cure
    assert bool(finding.cure) is (state != "good")


def test_a_torch_of_the_package_index_without_cuda_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its wheels for Windows have no CUDA, and the version in their metadata does not say so."""
    say(monkeypatch, "NVIDIA GeForce RTX 4090, 24564, 580.65\n")
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "2.13.0")
    place = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: place)
    (tmp_path / "version.py").write_text("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    finding = doctor._card()
    assert (finding.state, "without CUDA" in finding.cure) == ("fault", True)
    assert "torch 2.13.0+cpu" in finding.found


def test_the_cuda_of_torch_is_read_from_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    place = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: place)
    for text, built in (
        ("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", (13, 0)),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", None),
        ("cuda = '12.8'\n", (12, 8)),
    ):
        (tmp_path / "version.py").write_text(text)
        assert doctor._cuda_of_torch() == built
