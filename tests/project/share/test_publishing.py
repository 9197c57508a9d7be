"""Publishing: what a shared folder says, and what it never gives away."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.numpy import load_file, save_file

from modules.project.share.metadata import read_header
from modules.project.share.pictures import THUMBNAIL_LIMIT, data_url
from modules.util.config.SecretsConfig import SecretsConfig
from tests.changes import full_disk
from tests.project.simulated import headless, preferring, refused, told
from tests.project.test_project import NEW, brightness

SECRETS = (
    "Hilde Beispiel",
    "hbeispiel",
    "/srv/hbeispiel",
    "geheim-projekt",
    "Tante Emma",
    "my-base-folder",
    "hf_token",
)
ABOUT = ("--title", "Bright foxes", "--author", "H.", "--license", "cc-by-4.0")
TENSORS = {
    "unet.a.lora_A.weight": np.arange(8, dtype=np.float32).reshape(2, 4),
    "unet.a.lora_B.weight": np.ones((4, 2), np.float32),
}


@pytest.fixture
def project(made_once, prompts_file, drawer, capsys, monkeypatch, trains) -> Path:
    """A trained round whose adapter, base model, folder, prompts and images are full of secrets."""
    prompts_file.write_text(prompts_file.read_text() + "\na portrait of Tante Emma")
    trains("finish")

    def make(work: Path) -> None:
        train_secretly(work / "hbeispiel", prompts_file, capsys, monkeypatch)

    return made_once("trained", make) / "hbeispiel" / "geheim-projekt"


def train_secretly(place, prompts_file, capsys, monkeypatch) -> None:
    base, folder = place / "my-base-folder", place / "geheim-projekt"
    base.mkdir(parents=True)
    told(capsys, "new", folder, "--prompts", prompts_file, *NEW[2:], "--base-model", base)
    told(capsys, "generate", folder, "--per-prompt", 3)
    headless(monkeypatch, preferring(brightness), "pick", str(folder))
    told(capsys, "train", folder)
    adapter = folder / "round-1" / "adapter.safetensors"
    secrets = {
        "modelspec.title": "Hilde Beispiel",
        "modelspec.architecture": "stable-diffusion-v1/lora",
        "modelspec.hash_sha256": "0x" + hashlib.sha256(b"x").hexdigest(),
        "modelspec.author": "hbeispiel",
        "tastemaker.base_model": "/srv/hbeispiel/models",
        "tastemaker.rank": "2",
        "ss_output_name": "geheim-projekt",
        "ss_v2": "True",
    }
    save_file(TENSORS, adapter, metadata=secrets)


def published(capsys, project, out, *more) -> dict:
    return told(capsys, "publish", project, "--out", out, *ABOUT, *more)


def metadata(out: Path) -> dict[str, str]:
    header, _ = read_header(out / "adapter.safetensors")
    return header["__metadata__"]


def thumbnail(out: Path) -> bytes:
    return base64.b64decode(metadata(out)["modelspec.thumbnail"].partition(",")[2], validate=True)


def test_the_file_keeps_its_tensors_and_says_everything_of_the_format(project, tmp_path, capsys):
    out = tmp_path / "out"
    made = published(capsys, project, out, "--trigger", "brightfox", "--description", "Foxes, but bright.")
    assert sorted(path.name for path in out.iterdir()) == sorted(made["files"])
    found = load_file(out / "adapter.safetensors")
    assert found.keys() == TENSORS.keys() and all((found[n] == TENSORS[n]).all() for n in TENSORS)
    said = {name.removeprefix("modelspec."): text for name, text in metadata(out).items()}
    assert said["sai_model_spec"] == "1.0.1" and said["architecture"] == "stable-diffusion-v1/lora"
    assert (said["title"], said["author"], said["license"]) == ("Bright foxes", "H.", "cc-by-4.0")
    assert said["description"] == "Foxes, but bright." and said["trigger_phrase"] == "brightfox"
    assert said["resolution"] == "512x512" and "brightfox" in said["usage_hint"] and "lora" in said["tags"]
    assert len(said["date"]) == 10 and said["hash_sha256"].startswith("0x")
    assert metadata(out)["ss_v2"] == "True", "what programs need to load it stays"
    assert (
        said["thumbnail"].startswith("data:image/jpeg;base64,") and len(said["thumbnail"]) <= THUMBNAIL_LIMIT
    )
    with Image.open(io.BytesIO(thumbnail(out))) as image:
        image.load()


def test_the_card_has_a_header_and_the_figures(project, tmp_path, capsys, monkeypatch):
    headless(monkeypatch, preferring(brightness), "compare", str(project), "--images", "30")
    said = told(capsys, "status", project)["rounds"][0]
    out = tmp_path / "out"
    published(capsys, project, out, "--base-name", "somebody/model")
    text = (out / "README.md").read_text(encoding="utf-8")
    _, header, body = text.split("---\n", 2)
    header = yaml.safe_load(header)
    assert header["base_model"] == "somebody/model" and header["license"] == "cc-by-4.0"
    assert header["library_name"] == "diffusers" and "lora" in header["tags"]
    arena = said["arena"]
    for part in (
        f"| 1 | {said['candidates']} | {said['answers']} | {said['pairs']} | the pairs |",
        f"{arena['win_rate']:.0%} of {arena['votes']} votes",
        f"{arena['interval'][0]:.0%} to {arena['interval'][1]:.0%}",
        "| learning_rate |",
        "before_after.png",
    ):
        assert part in body, part
    assert "rlhf_dpo_beta" in body and "rlhf_nft_beta" not in body, "only settings that had an effect"
    result = json.loads((out / "result.json").read_text())
    assert result["arena"]["votes"] == arena["votes"] and result["answers"] == said["answers"]


def test_without_votes_it_says_so(project, tmp_path, capsys):
    published(capsys, project, tmp_path / "out")
    assert "not compared" in (tmp_path / "out" / "README.md").read_text()


def test_nothing_leaks(project, tmp_path, capsys, monkeypatch):
    """Every byte of every file, the thumbnail taken out of its text, and all that the pictures carry besides pixels."""
    monkeypatch.setenv("USER", "hbeispiel")
    out = tmp_path / "out"
    published(capsys, project, out)
    parts = {path.name: path.read_bytes() for path in out.iterdir()} | {"thumbnail": thumbnail(out)}
    for name, data in parts.items():
        for secret in (*SECRETS, str(tmp_path), str(project.parents[1]), "parameters", "Seed: "):
            for form in (secret.encode(), secret.lower().encode(), secret.encode("utf-16-le")):
                assert form not in data and form not in data.lower(), (name, secret)
    for data in (parts["before_after.png"], parts["thumbnail"]):
        with Image.open(io.BytesIO(data)) as image:
            assert not image.getexif() and not getattr(image, "text", {})
            assert set(image.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    prompts = (project / "prompts.txt").read_text().splitlines()
    assert not any(prompt.encode() in data for prompt in prompts for data in parts.values())


def test_the_picture_shows_the_models_own_images_alone(project, tmp_path, capsys):
    """No candidate that was picked from, and nothing else that lies about, gets into the picture."""
    out = tmp_path / "out"
    (project / "arena" / "images").mkdir(parents=True)
    Image.new("RGB", (64, 64), (1, 254, 3)).save(project / "arena" / "images" / "holiday.png")
    published(capsys, project, out)
    with Image.open(out / "before_after.png") as image:
        colours = {colour for _, colour in image.getcolors(1 << 24)}
    assert (1, 254, 3) not in colours and len(colours) > 10


def test_mistakes_write_nothing(project, tmp_path, capsys):
    for arguments, message in (
        (("--title", "x", "--author", "y"), "--license"),
        (("--title", "x", "--license", "y"), "--author"),
        ((*ABOUT, "--adapter", "round-9"), "no trained round 'round-9'"),
        ((*ABOUT, "--description", "a\x00b"), "characters that cannot be shown"),
    ):
        assert message in refused(capsys, "publish", project, "--out", tmp_path / "out", *arguments)
        assert not (tmp_path / "out").exists()


def test_after_a_full_disk_it_can_be_published_again(project, tmp_path, capsys):
    published(capsys, project, tmp_path / "first")
    for after in (1, 4, 7):
        with full_disk(after=after):
            refused(capsys, "publish", project, "--out", tmp_path / "out", *ABOUT)
        assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".tastemaker-*"))
    published(capsys, project, tmp_path / "out")


def test_places_that_are_refused(project, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    assert "not empty" in refused(capsys, "publish", project, "--out", tmp_path / "full", *ABOUT)
    assert "is inside the project" in refused(
        capsys, "publish", project, "--out", project / "round-1" / "p", *ABOUT
    )
    published(capsys, project, project / "report")


def test_a_file_that_is_no_adapter(project, tmp_path, capsys):
    for data in (b"", b"PK", struct.pack("<Q", 2**60) + b"{", struct.pack("<Q", 2) + b"[]"):
        (project / "round-1" / "adapter.safetensors").write_bytes(data)
        assert refused(capsys, "publish", project, "--out", tmp_path / "out", *ABOUT)
        assert not (tmp_path / "out").exists()


def test_a_thumbnail_of_noise_fits_too():
    noise = np.random.default_rng(1).integers(0, 256, (1500, 3000, 3), np.uint8)
    assert len(data_url(Image.fromarray(noise))) <= THUMBNAIL_LIMIT


class TestUpload:
    @pytest.fixture
    def hub(self, monkeypatch, tmp_path):
        """What was sent to Hugging Face."""
        monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        sent = []

        class Api:
            def __init__(self, token):
                sent.append(("token", token))

            def create_repo(self, name, private, exist_ok):
                sent.append(("repo", name, private))

            def upload_folder(self, repo_id, folder_path, allow_patterns):
                names = sorted(
                    path.name for path in Path(folder_path).iterdir() if path.name in allow_patterns
                )
                sent.append(("files", repo_id, names))
                return "https://somewhere/x"

        monkeypatch.setattr("huggingface_hub.HfApi", Api)
        return sent

    def test_only_what_was_looked_at_and_only_when_asked(self, project, tmp_path, capsys, hub, monkeypatch):
        out = tmp_path / "out"
        assert "not a published folder" in refused(
            capsys, "publish", project, "--out", out, *ABOUT, "--upload", "me/foxes"
        )
        assert not out.exists() and hub == []
        published(capsys, project, out)
        assert hub == []
        assert "token" in refused(capsys, "publish", project, "--out", out, "--upload", "me/foxes")
        SecretsConfig(huggingface_token="hf_token").save()
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        told(capsys, "publish", project, "--out", out, "--upload", "me/foxes")
        assert hub == [
            ("token", "hf_token"),
            ("repo", "me/foxes", True),
            ("files", "me/foxes", sorted(before)),
        ]
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
        told(capsys, "publish", project, "--out", out, "--upload", "me/foxes", "--public")
        assert ("repo", "me/foxes", False) in hub
        monkeypatch.setenv("HF_TOKEN", "hf_of_the_terminal")
        told(capsys, "publish", project, "--out", out, "--upload", "me/foxes")
        assert hub[-3] == ("token", "hf_of_the_terminal"), "as for downloads"

    def test_a_folder_with_something_else_in_it_stays_here(self, project, tmp_path, capsys, hub):
        out = tmp_path / "out"
        published(capsys, project, out)
        SecretsConfig(huggingface_token="hf_token").save()
        (out / "diary.txt").write_text("mine")
        assert "nothing else" in refused(capsys, "publish", project, "--out", out, "--upload", "me/foxes")
        (out / "diary.txt").unlink()
        assert "not a name" in refused(capsys, "publish", project, "--out", out, "--upload", "../x/y")
        assert hub == []
