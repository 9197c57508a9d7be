from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.embedding.EmbeddingConfig import EmbeddingConfig
from modules.util.config.load import check_config, load_config, load_layered, read_config
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import SECTIONS, TrainConfig
from modules.util.enum.choices import DPOPatienceMetric
from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from modules.util.enum.DPORefMode import DPORefMode
from modules.util.errors import ConfigError, UnsupportedError, UserError, UserErrors
from tests.util.config.strategies import configs

LISTS = {
    "concepts": st.none() | st.lists(configs(ConceptConfig), max_size=2),
    "samples": st.none() | st.lists(configs(SampleConfig), max_size=2),
    "additional_embeddings": st.lists(configs(EmbeddingConfig), max_size=2),
}


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(configs(TrainConfig, LISTS))
def test_round_trip_through_a_file(data: dict) -> None:
    config = TrainConfig.from_dict(data)
    text = json.dumps(config.to_dict(), allow_nan=False)
    again = TrainConfig.from_dict(json.loads(text))
    assert again == config
    assert again.to_dict() == config.to_dict()


def test_every_value_given_is_in_the_config_and_the_rest_is_default() -> None:
    data = {"rlhf_dpo_beta": 12, "unet": {"learning_rate": 0.5}, "optimizer": {"params": {"k": "inf"}}}
    config = TrainConfig.from_dict(data)
    assert config.rlhf_dpo_beta == 12.0
    assert isinstance(config.rlhf_dpo_beta, float)
    assert config.unet.learning_rate == 0.5
    plain, default = config.to_dict(), TrainConfig().to_dict()
    changed = {name for name in plain if plain[name] != default[name]}
    assert changed == {"rlhf_dpo_beta", "unet", "optimizer"}


def test_promised_defaults() -> None:
    plain = TrainConfig().to_dict()
    promised = {
        "rlhf_enabled": False,
        "rlhf_mode": "DPO",
        "rlhf_dpo_beta": 5000.0,
        "rlhf_dpo_label_smoothing": 0.0,
        "rlhf_dpo_objective": "SIGMOID",
        "rlhf_dpo_ipo_tau": 1000.0,
        "rlhf_dpo_adaptive_beta": False,
        "rlhf_dpo_timestep_margin_logging": False,
        "rlhf_dpo_ref_mode": "NEW_ADAPTER",
        "rlhf_dpo_execution_mode": "FULL_CONCURRENT",
        "rlhf_dpo_sequential_strategy": "AUTO",
        "rlhf_supervised_mix": 0.0,
        "rlhf_dpo_shared_noise": True,
        "rlhf_dpo_validation": False,
        "rlhf_dpo_validation_percentage": 10.0,
        "rlhf_dpo_patience_enabled": False,
        "rlhf_dpo_patience_value": 5,
        "rlhf_dpo_patience_mode": "EITHER",
        "rlhf_dpo_patience_metrics": ["val_accuracy", "val_loss"],
        "rlhf_dpo_save_best": True,
    }
    assert {name: plain[name] for name in promised} == promised
    assert next(iter(plain)) == "__version"


def test_files_keep_the_order_of_the_sections() -> None:
    expected = [name for section in SECTIONS for name in section.model_fields]
    assert list(TrainConfig().to_dict()) == ["__version", *expected]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"batch_sise": 2}, "batch_sise: there is no such setting\n  -> did you mean 'batch_size'?"),
        ({"unet": {"trian": True}}, "unet.trian: there is no such setting\n  -> did you mean 'train'?"),
        ({"batch_size": 0}, "batch_size: must be at least 1, not 0"),
        ({"batch_size": True}, "batch_size: must be a whole number, not true"),
        ({"batch_size": 2.0}, "batch_size: must be a whole number, not 2.0"),
        ({"learning_rate": -1e-4}, "learning_rate: must be at least 0, not -0.0001"),
        ({"learning_rate": "abc"}, 'learning_rate: must be a number, not "abc"'),
        ({"learning_rate": False}, "learning_rate: must be a number, not false"),
        ({"learning_rate": None}, "learning_rate: must be a number, not null"),
        ({"learning_rate": math.nan}, "learning_rate: must be a number, not NaN"),
        ({"rlhf_dpo_beta": "inf"}, "rlhf_dpo_beta: must be a finite number, not inf"),
        ({"rlhf_dpo_beta": math.inf}, "rlhf_dpo_beta: must be a finite number, not inf"),
        ({"rlhf_dpo_label_smoothing": 0.5}, "rlhf_dpo_label_smoothing: must be less than 0.5, not 0.5"),
        ({"rlhf_dpo_ipo_tau": 0}, "rlhf_dpo_ipo_tau: must be at least 1e-06, not 0"),
        ({"rlhf_rollout_temperature": 0}, "rlhf_rollout_temperature: must be greater than 0, not 0"),
        ({"rlhf_supervised_mix": -0.1}, "rlhf_supervised_mix: must be at least 0, not -0.1"),
        ({"rlhf_enabled": "yes"}, 'rlhf_enabled: must be true or false, not "yes"'),
        ({"rlhf_enabled": 1}, "rlhf_enabled: must be true or false, not 1"),
        ({"seed": 10**40}, "seed: must be at most 9007199254740991, not 1"),
        ({"workspace_dir": ""}, "workspace_dir: must not be empty"),
        ({"unet": {"weight_dtype": "BFLOAT16"}}, "-> did you mean 'BFLOAT_16'?"),
        ({"unet": {"weight_dtype": 7}}, "unet.weight_dtype: must be one of FLOAT_32, BFLOAT_16, FLOAT_16"),
        ({"unet": 3}, "unet: must be an object {...}, not 3"),
        ({"unet": {"learning_rate": []}}, "unet.learning_rate: must be a number, or empty (null), not []"),
        ({"resolution": "512x768"}, "resolution: must be whole numbers between 32 and 8192"),
        ({"resolution": 512}, "resolution: must be text in quotes, not 512"),
        ({"resolution": "٥١٢"}, "resolution: must be whole numbers"),
        ({"train_device": "gpu"}, "train_device: must be auto, cpu, cuda or cuda:N"),
        ({"train_device": "cuda:0,cpu"}, "train_device: must be auto, cpu, cuda or cuda:N"),
        ({"train_device": "cuda:1,cuda:0,cuda:1"}, "train_device: cuda:1 is listed twice"),
        ({"train_device": "cuda:0,cuda:00"}, "train_device: cuda:0 is listed twice"),
        ({"concepts": {}}, "concepts: must be a list [...], or empty (null), not {}"),
        ({"concepts": [{}, {"path": 3}]}, "concepts[1].path: must be text in quotes, not 3"),
        ({"concepts": [{"image": {"enable_flip": True}}]}, "concepts[0].image.enable_flip: there is no such"),
        ({"samples": [{"width": 500}]}, "samples[0].width: must be a multiple of 8, not 500"),
        ({"rlhf_dpo_patience_metrics": []}, "rlhf_dpo_patience_metrics: must not be empty"),
        ({"rlhf_dpo_patience_metrics": ["val_acc"]}, "rlhf_dpo_patience_metrics[0]: must be one of"),
        ({"optimizer": {"params": {"a": [1]}}}, "optimizer.params: a: must be a number, text"),
        ({"optimizer": {"params": {"a": math.nan}}}, "optimizer.params: a: must be a number, not NaN"),
        ({"__version": 99}, "__version: this config has format 99; this program knows formats up to"),
        ({"__version": "1"}, "__version: must be a whole number, not '1'"),
        ({"__version": -1}, "__version: must be a whole number, not -1"),
        ({"concepts": [{"__version": 9}]}, "concepts[0].__version: this concept has format 9"),
    ],
)
def test_a_bad_value_is_one_clear_error(data: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(data)
    assert message in str(caught.value)


def test_all_faults_are_reported_at_once_rules_included() -> None:
    data = {
        "batch_size": 0,
        "learning_rate": "x",
        "zork": 1,
        "rlhf_enabled": True,
        "training_method": "FINE_TUNE",
        "force_v_prediction": True,
        "force_epsilon_prediction": True,
        "unet": {"train": 1},
    }
    with pytest.raises(UserErrors) as caught:
        read_config(data)
    fields = [error.field for error in caught.value.errors]
    assert sorted(fields) == sorted(
        ["batch_size", "learning_rate", "zork", "training_method", "force_v_prediction", "unet.train"]
    )


def test_a_rule_about_an_impossible_value_stays_silent() -> None:
    with pytest.raises(ConfigError, match="training_method"):
        read_config({"rlhf_enabled": True, "training_method": "LORRA"})


@pytest.mark.parametrize("data", [[], 3, "x", None])
def test_what_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(ConfigError, match="must be an object"):
        read_config(data)  # type: ignore[arg-type]


def test_direct_construction_and_assignment_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"unet\.train: must be true or false"):
        TrainConfig(unet={"train": 3})
    with pytest.raises(UserErrors):
        TrainConfig(batch_size=0, epochs=0)
    config = TrainConfig()
    config.rlhf_dpo_execution_mode = "SEQUENTIAL"
    assert config.rlhf_dpo_execution_mode is DPOExecutionMode.SEQUENTIAL
    config.rlhf_dpo_patience_metrics = ["val_chosen_reward"]
    assert config.rlhf_dpo_patience_metrics == [DPOPatienceMetric.VAL_CHOSEN_REWARD]
    config.learning_rate = 1
    with pytest.raises(ConfigError, match="batch_size: must be at least 1"):
        config.batch_size = 0
    assert config.batch_size == 1
    with pytest.raises(ConfigError, match="did you mean 'batch_size'"):
        config.batch_sise = 2
    with pytest.raises(ConfigError, match="learning_rate"):
        config.unet.learning_rate = -1.0


def test_infinity_is_written_as_text() -> None:
    config = TrainConfig.from_dict({"optimizer": {"params": {"growth_rate": math.inf}}})
    text = json.dumps(config.to_dict(), allow_nan=False)
    assert '"growth_rate": "inf"' in text


def test_reference_mode_follows_the_adapter(tmp_path: Path) -> None:
    config = TrainConfig.from_dict({"rlhf_dpo_ref_mode": "EXISTING_ADAPTER"})
    assert config.effective_dpo_ref_mode() is DPORefMode.NEW_ADAPTER
    assert config.rlhf_dpo_ref_mode is DPORefMode.NEW_ADAPTER
    config.lora_model_name = "adapter.safetensors"
    assert config.effective_dpo_ref_mode() is DPORefMode.EXISTING_ADAPTER
    config.save(tmp_path / "c.json")
    stored = json.loads((tmp_path / "c.json").read_text())
    assert stored["rlhf_dpo_ref_mode"] == "EXISTING_ADAPTER"
    stored["rlhf_dpo_ref_mode"] = "NEW_ADAPTER"
    (tmp_path / "c.json").write_text(json.dumps(stored))
    assert load_config(tmp_path / "c.json").rlhf_dpo_ref_mode is DPORefMode.EXISTING_ADAPTER


def test_resolutions() -> None:
    assert TrainConfig(resolution="768, 512,768").resolutions() == [768, 512]


def test_sparse_form_has_what_differs_and_gives_the_config_back() -> None:
    data = {
        "unet": {"train": False},
        "text_encoder": {"train": True},
        "epochs": 3,
        "concepts": [{"path": "a"}],
    }
    config = read_config(data)
    sparse = config.sparse_dict()
    assert {key: sparse[key] for key in ("__version", "unet", "text_encoder", "epochs")} == {
        "__version": TrainConfig.VERSION,
        "unet": {"train": False},
        "text_encoder": {"train": True},
        "epochs": 3,
    }
    assert set(sparse) == {"__version", "unet", "text_encoder", "epochs", "concepts"}
    assert TrainConfig.from_dict(sparse) == config
    assert TrainConfig().sparse_dict() == {"__version": TrainConfig.VERSION}


def test_copies_share_nothing() -> None:
    config = TrainConfig(concepts=[{"path": "a"}])
    for copied in (config.copy_of(), pickle.loads(pickle.dumps(config))):
        assert copied == config
        copied.unet.train = False
        copied.concepts[0].path = "b"
        assert config.unet.train is True
        assert config.load_concepts()[0].path == "a"


def test_lists_of_onetrainer_are_one_error(tmp_path: Path) -> None:
    for item in ({"__version": 2, "path": "a"}, {"path": "a", "concept_stats": {}}):
        with pytest.raises(ConfigError, match="import_config"):
            ConceptConfig.load_all([item, item])
    with pytest.raises(ConfigError, match="import_config"):
        SampleConfig.load_all([{"prompt": "a", "frames": 1}])


def test_packed_holds_concepts_and_samples(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps([{"path": "a"}, {"path": "b", "type": "DPO_CHOSEN"}]))
    (tmp_path / "s.json").write_text(json.dumps([{"prompt": "cat"}]))
    config = TrainConfig(concept_file_name="c.json", sample_definition_file_name="s.json")
    packed = config.packed(tmp_path)
    assert [concept.path for concept in packed.concepts or []] == ["a", "b"]
    assert [sample.prompt for sample in packed.samples or []] == ["cat"]
    assert config.concepts is None
    packed.concepts[0].path = "z"  # type: ignore[index]
    assert packed.load_concepts()[0].path == "z"
    assert TrainConfig(sample_definition_file_name="none.json").load_samples(tmp_path) == []
    with pytest.raises(UserError, match="does not exist"):
        TrainConfig(concept_file_name="none.json").load_concepts(tmp_path)


def test_faults_in_a_concept_file_name_the_concept(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps([{"loss_weight": -1}, {"typ": "STANDARD"}, 3]))
    with pytest.raises(UserErrors) as caught:
        ConceptConfig.load_all("c.json", tmp_path)
    assert [e.field for e in caught.value.errors] == [
        "concepts[0].loss_weight",
        "concepts[1].typ",
        "concepts[2]",
    ]
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(ConfigError, match="must be a list"):
        ConceptConfig.load_all(tmp_path / "c.json")


def test_a_onetrainer_config_is_recognised() -> None:
    with pytest.raises(ConfigError, match="OneTrainer"):
        TrainConfig.from_dict({"__version": 11, "batch_size": 1, "cloud": {}, "quantization": {}})


def test_layers_lie_over_each_other(tmp_path: Path) -> None:
    preset, config = tmp_path / "p.json", tmp_path / "c.json"
    preset.write_text(json.dumps({"__version": 1, "batch_size": 4, "unet": {"train": False}, "epochs": 7}))
    config.write_text(
        json.dumps({"batch_size": 8, "weight_dtype": "BFLOAT_16", "text_encoder": {"train": True}})
    )
    made = load_layered(preset, config, ["epochs=9", "unet.learning_rate=0.5"])
    assert (made.batch_size, made.epochs, made.unet.train, made.unet.learning_rate) == (8, 9, False, 0.5)
    assert made.unet.weight_dtype == made.text_encoder.weight_dtype == "BFLOAT_16"
    assert load_layered(None, None) == TrainConfig()
    assert load_config(preset, ["unet.train=true"]).batch_size == 4
    config.write_text("[]")
    with pytest.raises(ConfigError, match="is not a config"):
        load_config(config)
    config.write_text('{"__version": 11, "secrets": {}}')
    with pytest.raises(ConfigError, match="OneTrainer"):
        load_config(config)


def test_faults_of_texts_values_and_rules_are_reported_together(tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"batch_size": 0, "ema": "GPU", "layer_filter_preset": "custom"}))
    with pytest.raises(UserErrors) as caught:
        load_config(path, ["learning_rat=1", "ema=OFF", "seed"])
    assert [error.field for error in caught.value.errors] == [
        "learning_rat",
        "--set",
        "batch_size",
        "layer_filter",
    ]


def test_unsupported_alone_is_not_implemented() -> None:
    with pytest.raises(NotImplementedError):
        read_config({"rlhf_enabled": True, "training_method": "FINE_TUNE"})
    online = {"rlhf_enabled": True, "rlhf_mode": "GRPO", "text_encoder": {"train": True}}
    with pytest.raises(UnsupportedError, match="GRPO trains the denoiser alone"):
        read_config(online)
    unchecked = TrainConfig.from_dict(online)
    with pytest.raises(NotImplementedError):
        check_config(unchecked)


def test_sample_seed() -> None:
    fixed, free = SampleConfig(seed=7), SampleConfig(seed=7, random_seed=True)
    assert fixed.seed_at(1) == fixed.seed_at(2) == 7
    assert free.seed_at(1) == free.seed_at(1) != free.seed_at(2)


@pytest.mark.child
def test_import_is_light() -> None:
    code = (
        "import sys, modules.util.config.TrainConfig, modules.util.config.settings\n"
        "import modules.util.config.onetrainer.onetrainer_import\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'peft', 'numpy', 'tkinter'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("place", ["", "unet"])
def test_of_very_many_unknown_names_twenty_are_named_and_the_others_counted(
    tmp_path: Path, place: str
) -> None:
    strange: dict[str, object] = {f"learning_rate_{n}": n for n in range(100_000)}
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"__version": 1, **({place: strange} if place else strange)}), encoding="utf-8"
    )
    with pytest.raises(UserErrors) as caught:
        load_config(path)
    told = [str(error).splitlines()[0] for error in caught.value.errors]
    prefix = f"{place}." if place else ""
    assert told[:2] == [f"{prefix}learning_rate_{n}: there is no such setting" for n in (0, 1)]
    assert [line for line in told if line.startswith(prefix)][20] == (
        f"{prefix}... and 99,980 more: there is no such setting"
    )
    assert len(str(caught.value)) < 10_000


def test_a_very_long_unknown_name_is_compared_by_its_beginning_alone() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_dict({"batch_sise" + "x" * 5_000_000: 1})
    assert caught.value.hint is None


@pytest.mark.parametrize(
    "text", ['{"learning_rate": 1e-4, "learning_rate": 1.0}', '{"unet": {"train": true, "train": false}}']
)
def test_a_setting_with_two_values_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"ambiguous: .* '(learning_rate|train)' twice") as caught:
        load_config(path)
    assert caught.value.hint == "remove one of them"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("cuda:01", "cuda:1"), ("cuda:00,cuda:1", "cuda:0,cuda:1"), ("cuda", "cuda"), ("auto", "auto")],
)
def test_the_number_of_a_gpu_has_one_spelling(written: str, meant: str) -> None:
    assert read_config({"train_device": written}).train_device == meant
