"""Captioning models and taggers with weights of our own, as folders."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = [
    "<pad>",
    "<s>",
    "</s>",
    "<image>",
    "[UNK]",
    "USER",
    "ASSISTANT",
    "a",
    "red",
    "blue",
    "fox",
    "cat",
    "in",
]


def _tokenizer(folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    inside = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inside.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=inside, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="[UNK]",
        extra_special_tokens={"image_token": "<image>"},
    ).save_pretrained(folder)  # fmt: skip


def chatting_model(folder: Path) -> Path:
    """A LLaVA with random weights, which takes chats."""
    from transformers import (
        AutoTokenizer,
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    _tokenizer(folder)
    torch.manual_seed(1)
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=16,
        patch_size=8, projection_dim=16,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=3, vision_feature_layer=-1)
    model = LlavaForConditionalGeneration(config)
    for parameter in model.parameters():  # so that texts differ from image to image
        parameter.data.mul_(3)
    model.save_pretrained(folder)
    template = (
        "{% for m in messages %}USER {% for c in m['content'] %}"
        "{% if c['type'] == 'image' %}<image> {% else %}{{ c['text'] }} {% endif %}{% endfor %}{% endfor %}ASSISTANT"
    )
    size = {"height": 16, "width": 16}
    images = CLIPImageProcessorPil(size=size, crop_size=size)
    LlavaProcessor(
        images, AutoTokenizer.from_pretrained(folder), patch_size=8, vision_feature_select_strategy="default",
        chat_template=template, num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def plain_model(folder: Path) -> Path:
    """A BLIP with random weights, which needs no question."""
    from transformers import BertTokenizer, BlipConfig, BlipForConditionalGeneration, BlipProcessor
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    folder.mkdir(parents=True)
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "red",
        "blue",
        "fox",
        "cat",
        "in",
        "snow",
        "[DEC]",
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), extra_special_tokens={"begin": "[DEC]"})
    torch.manual_seed(2)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BlipConfig(
        text_config={
            **small, "vocab_size": len(words), "bos_token_id": 12, "eos_token_id": 3, "sep_token_id": 3,
            "pad_token_id": 0, "encoder_hidden_size": 16,
        },
        vision_config={**small, "image_size": 16, "patch_size": 8, "initializer_range": 0.02},
    )  # fmt: skip
    model = BlipForConditionalGeneration(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(10)
    model.save_pretrained(folder)
    BlipProcessor(BlipImageProcessorPil(size={"height": 16, "width": 16}), tokenizer).save_pretrained(folder)
    return folder


TAGS = [("general", 9), ("1girl", 0), ("long_hair", 0), ("red_background", 0), ("^_^", 0), ("some_hero", 4)]
WEIGHTS = numpy.array([[0, 4, 0, 8, 0, 2], [0, 0, 4, -8, 0, 2], [0, 0, 4, -8, 6, 6]], dtype=numpy.float32)
"""(channel R, G, B; tag), of the image's mean from 0 to 1."""


def probabilities(rgb: Sequence[float]) -> numpy.ndarray:
    """What the tagger says of an image of one colour, each channel from 0 to 1."""
    logits = numpy.array(rgb) @ WEIGHTS - 2
    return 1 / (1 + numpy.exp(-logits))


def write_tags(folder: Path) -> None:
    with (folder / "selected_tags.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["tag_id", "name", "category", "count"])
        writer.writerows([i, name, kind, 100] for i, (name, kind) in enumerate(TAGS))


def onnx_tagger(folder: Path) -> Path:
    """A tagger as published: it takes (B, 8, 8, 3) BGR from 0 to 255."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    folder.mkdir(parents=True)
    constants = [
        numpy_helper.from_array(numpy.array([1, 2], numpy.int64), "axes"),
        numpy_helper.from_array(WEIGHTS[::-1].copy() / 255, "weights"),
        numpy_helper.from_array(numpy.full(len(TAGS), -2, numpy.float32), "bias"),
    ]
    nodes = [
        helper.make_node("ReduceMean", ["images", "axes"], ["mean"], keepdims=0),
        helper.make_node("Gemm", ["mean", "weights", "bias"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["tags"]),
    ]
    given = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 8, 8, 3])
    made = helper.make_tensor_value_info("tags", TensorProto.FLOAT, [1, len(TAGS)])
    graph = helper.make_graph(nodes, "tagger", [given], [made], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    write_tags(folder)
    return folder


def classifier(folder: Path) -> Path:
    """The layout of transformers, with random weights."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    torch.manual_seed(3)
    config = ViTConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16,
        patch_size=8, num_labels=len(TAGS),
    )  # fmt: skip
    model = ViTForImageClassification(config)
    for parameter in model.parameters():
        parameter.data.mul_(5)
    model.save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    write_tags(folder)
    return folder


def clipseg(folder: Path) -> Path:
    """A tiny CLIPSeg of random weights that looks at 16 x 16 pixels."""
    from transformers import CLIPSegConfig, CLIPSegForImageSegmentation
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    folder.mkdir(parents=True)
    _tokenizer(folder)
    layers = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = CLIPSegConfig(
        text_config=layers | {"vocab_size": 64, "max_position_embeddings": 16},
        vision_config=layers | {"image_size": 16, "patch_size": 4},
        projection_dim=16, reduce_dim=8, extract_layers=[0, 1], decoder_num_attention_heads=2,
        decoder_intermediate_size=16,
    )  # fmt: skip
    model = CLIPSegForImageSegmentation(config)
    model.save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


def segmentation(folder: Path, labels: Sequence[str] = ("Background", "fox", "cat")) -> Path:
    """A tiny MobileNetV2 with DeepLabV3 of random weights that looks at 32 x 32 pixels, whose processor crops."""
    from transformers import MobileNetV2Config, MobileNetV2ForSemanticSegmentation, MobileNetV2ImageProcessor

    folder.mkdir(parents=True)
    torch.manual_seed(0)
    config = MobileNetV2Config(
        image_size=32, depth_multiplier=0.25, min_depth=4, id2label=dict(enumerate(labels)), output_stride=16,
    )  # fmt: skip
    MobileNetV2ForSemanticSegmentation(config).save_pretrained(folder)
    MobileNetV2ImageProcessor(
        size={"height": 32, "width": 32}, crop_size={"height": 16, "width": 16}, do_center_crop=True
    ).save_pretrained(folder)
    return folder
