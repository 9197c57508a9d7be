from functools import partial
from typing import ClassVar

from pydantic import field_validator

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.resolution import parse_resolutions
from modules.util.config.setting import Float, PathText, setting
from modules.util.enum.choices import MaskSource

_concepts = partial(setting, group="Concepts", free=True)
_images = partial(setting, group="Images", cost="value", free=False)
_cache = partial(setting, group="Cache", free=True)
_masks = partial(setting, group="Masks", free=False)


class DataSection(BaseConfig):
    """Images, prompts and how they are fed to the model."""

    SECTION: ClassVar[str] = "Data"

    concept_file_name: PathText = _concepts(
        "training_concepts/concepts.json",
        widget="file",
        title="Concept file",
        tip="The list of image folders to train on. Not read if the config itself contains the concepts.",
    )
    concepts: list[ConceptConfig] | None = _concepts(
        None,
        hidden=True,
        tip="The concepts themselves; null reads them from the concept file.",
    )
    resolution: str = _images(
        "512",
        tip=(
            "Images are scaled to about the area of a square with this side, in pixels. With a list such as "
            '"512, 768", every image is trained at each of these sizes.'
        ),
    )
    source_resolution: int | None = _images(
        None,
        within=(64, 1024),
        title="Source size",
        tip=(
            "For models that edit images: source images are scaled to about the area of a square with this side, in "
            "pixels. Empty: to the size of the result, up to one megapixel. A smaller value needs less memory and "
            "time, but the model sees fewer details of the source. The setting also applies to samples and to the "
            "images of online training. Usual: empty, or 512."
        ),
    )
    aspect_ratio_bucketing: bool = _images(
        True,
        tip=(
            "Keep the shape of the images instead of cropping everything to a square. A batch then has images of "
            "equal shape."
        ),
    )
    latent_caching: bool = _cache(
        True,
        cost="value",
        tip=(
            "Encode every image and prompt once and keep the result on disk. Off: every batch is encoded "
            "again, and text encoders and VAE stay on the device."
        ),
    )
    cache_batch_size: int | None = _cache(
        None,
        within=(1, 1024),
        visible="latent_caching",
        title="Images read ahead",
        tip=(
            "Number of images decoded ahead of encoding while the cache is filled. It does not affect the "
            "latents: images are encoded one at a time. Larger values need more main memory. Empty: up to "
            "8, fewer if they would take more than a tenth of the free memory."
        ),
    )
    dataloader_threads: int = _cache(
        2,
        within=(0, 256),
        cost="value",
        title="Loader threads",
        tip="Threads that read and decode images. 0: read images between the steps.",
    )

    masked_training: bool = _masks(
        False,
        visible="!rlhf_enabled",
        tip=(
            "Learn each image only where its mask is white, for example the person and not the "
            "room. Pairs have their own mask settings."
        ),
    )
    mask_source: MaskSource = _masks(
        MaskSource.FILE,
        tip=(
            "FILE: photo-masklabel.png next to photo.jpg. ALPHA: the alpha channel of the image. FOLDER: the file "
            "of the same name in the concept's mask folder. An image without a mask is learned in full."
        ),
    )
    unmasked_weight: Float = _masks(
        0.1,
        within=(0, 1),
        visible="masked_training",
        tip=(
            "Weight of the black area of a mask. A small weight keeps the model from changing the rest of "
            "the image. 0: the black area does not count."
        ),
    )
    unmasked_probability: Float = _masks(
        0.1,
        within=(0, 1),
        visible="masked_training",
        title="Mask dropout",
        tip=(
            "Probability that an image is used without its mask, so that the whole image is learned. 0: "
            "never, 1: always."
        ),
    )
    normalize_masked_area_loss: bool = _masks(
        False,
        visible="masked_training",
        title="Area normalisation",
        tip=(
            "Divide the loss of an image by the share of its area that counts, so that small "
            "subjects weigh as much as large ones."
        ),
    )
    masked_prior_preservation_weight: Float = _masks(
        0.0,
        within=(0, 1000),
        visible="masked_training,training_method=LORA|EMBEDDING",
        cost="switch",
        title="Prior preservation",
        tip=(
            "How strongly the area outside the mask is held to the model's prediction without the adapter, or with the "
            "word of an embedding as it was. Backgrounds then stay as they were. Each step takes one more "
            "pass. 0: off; 1 is usual."
        ),
    )

    custom_conditioning_image: bool = _masks(
        False,
        visible="!rlhf_enabled",
        tip=(
            "For inpainting models: the model sees photo-condlabel.png, next to photo.jpg, instead of the masked "
            "image. An image without such a file is masked as usual."
        ),
    )

    @field_validator("resolution")
    @classmethod
    def _readable_resolution(cls, value: str) -> str:
        parse_resolutions(value)
        return value
