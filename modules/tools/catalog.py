"""The available tools, in page order."""

from __future__ import annotations

from modules.tools.dataset.captioning import Mode
from modules.tools.dataset.masking import Mode as MaskMode
from modules.tools.dataset.renaming import FIELDS
from modules.tools.dataset.rewriting import ENDINGS
from modules.tools.ToolSpec import Kind, ToolField, ToolSpec
from modules.util.enum.choices import DataType, ModelFormat
from modules.util.enum.ModelType import ModelType

_FOLDER = ToolField("folder", "Folder", "The folder with the images.", Kind.FOLDER, needed=True)
_SUBFOLDERS = ToolField("--subfolders", "Subfolders", "Include the images in subfolders.", Kind.SWITCH)
_OVERWRITE = ToolField(
    "--overwrite",
    "Replace files",
    "Move existing files of the same name out of the way. Undo restores them.",
    Kind.SWITCH,
)


def _folder_tool(
    key: str,
    title: str,
    about: str,
    script: str,
    verb: str,
    *fields: ToolField,
    overwrites: bool = False,
    previews: bool = True,
) -> ToolSpec:
    """A tool for the images of a folder. What it changes, it previews and can undo."""
    inputs = (_FOLDER, *fields, _SUBFOLDERS, *([_OVERWRITE] if overwrites else []))
    return ToolSpec(key, title, about, script, verb, inputs, previews=previews, undoes=previews)


RENAME = _folder_tool(
    "rename",
    "Rename images",
    "Give all images of a folder new names. Captions and masks get the same names.",
    "dataset.py",
    "rename",
    ToolField(
        "--pattern",
        "Pattern",
        f"The new name without its extension. Possible fields: {FIELDS}.",
        needed=True,
    ),
    ToolField(
        "--start", "First number", "The first number. Each folder is counted separately.", Kind.WHOLE, 1
    ),
    overwrites=True,
)
REWRITE = _folder_tool(
    "rewrite",
    "Resize and convert",
    "Make images smaller, turn or convert them, or remove their metadata. Masks follow their image.",
    "dataset.py",
    "rewrite",
    ToolField(
        "--edge", "Longer side", "Length of the longer side in pixels. Empty: the size stays.", Kind.WHOLE
    ),
    ToolField(
        "--area",
        "Area",
        "Images get the area of a square with this side in pixels. 1024 is usual for SDXL.",
        Kind.WHOLE,
    ),
    ToolField("--enlarge", "Enlarge", "Also enlarge images that are smaller.", Kind.SWITCH),
    ToolField(
        "--to", "Format", "The new format. Empty: the format stays.", Kind.CHOICE, choices=tuple(ENDINGS)
    ),
    ToolField(
        "--quality",
        "Quality",
        "Quality of JPEG and WebP, 1 to 100. 100 is lossless for WebP.",
        Kind.WHOLE,
        95,
    ),
    ToolField(
        "--turn",
        "Turn upright",
        "Rotate the pixels by the orientation that the camera stored.",
        Kind.SWITCH,
    ),
    ToolField(
        "--strip",
        "Remove metadata",
        "Remove metadata, including the prompts of generated images. Colour profiles stay.",
        Kind.SWITCH,
    ),
    overwrites=True,
)
DUPLICATES = _folder_tool(
    "duplicates",
    "Find duplicates",
    "List images that are identical to an earlier one, or look the same.",
    "dataset.py",
    "duplicates",
    ToolField(
        "--distance",
        "Distance",
        "How different near-duplicates may look. 0: identical. 4 is usual, 10 is tolerant.",
        Kind.WHOLE,
        4,
    ),
    ToolField(
        "--remove",
        "Move duplicates out",
        "Move duplicates out of the folder, with captions and masks. Undo restores them.",
        Kind.SWITCH,
    ),
)
STATISTICS = _folder_tool(
    "statistics",
    "Statistics",
    "Count sizes, shapes, buckets and tags, and list images without a caption.",
    "dataset.py",
    "stats",
    ToolField(
        "--resolution",
        "Resolution",
        "Resolution of the training, which determines the buckets.",
        Kind.WHOLE,
        1024,
    ),
    previews=False,
)
_MODE = ToolField(
    "--mode",
    "Existing captions",
    "BLANK keeps captions that have text. REPLACE writes all captions again. APPEND adds to existing captions. Undo "
    "restores the old ones.",
    Kind.CHOICE,
    Mode.BLANK.value,
    tuple(Mode),
)
_AROUND = (
    ToolField("--prefix", "Before", "Text before each new caption, such as a word for your subject."),
    ToolField("--suffix", "After", "Text after each new caption."),
)
_PROMPT = ToolField(
    "--prompt", "Question", "The question about each image. Leave it empty if the model needs none."
)
_LENGTH = ToolField(
    "--length",
    "Maximum length",
    "Maximum length of a caption in tokens. A word has about 1.3 tokens.",
    Kind.WHOLE,
    120,
)

DESCRIBE = _folder_tool(
    "describe",
    "Describe images",
    "Write captions with a model on this computer: BLIP, Qwen-VL, LLaVA or another of transformers.",
    "caption.py",
    "describe",
    ToolField(
        "--model", "Model", "A folder, or a name on the Hugging Face hub.", Kind.FOLDER, needed=True
    ),
    _PROMPT,
    _MODE,
    *_AROUND,
    _LENGTH,
    ToolField(
        "--batch",
        "Images at once",
        "Number of images processed at once. More are faster but need more memory.",
        Kind.WHOLE,
        1,
    ),
    ToolField(
        "--dtype",
        "Number format",
        "Number format of the model. BFLOAT_16 needs half the memory of FLOAT_32.",
        Kind.CHOICE,
        DataType.FLOAT_32.value,
        (DataType.FLOAT_32.value, DataType.FLOAT_16.value, DataType.BFLOAT_16.value),
    ),
    ToolField("--device", "Device", "The device that computes: auto, cpu or cuda.", Kind.TEXT, "auto"),
)
TAG = _folder_tool(
    "tag",
    "Tag images",
    "Write lists of tags with a WD tagger on this computer.",
    "caption.py",
    "tag",
    ToolField(
        "--model",
        "Tagger",
        "The folder of the tagger, with model.onnx and selected_tags.csv.",
        Kind.FOLDER,
        needed=True,
    ),
    ToolField(
        "--threshold", "Minimum certainty", "Minimum probability of a tag, 0 to 1.", Kind.NUMBER, 0.35
    ),
    ToolField(
        "--character",
        "Minimum for characters",
        "Minimum probability of a character's name, 0 to 1.",
        Kind.NUMBER,
        0.85,
    ),
    ToolField("--drop", "Excluded tags", "Tags that are never written, separated by commas."),
    ToolField("--underscores", "Keep underscores", "Write long_hair instead of long hair.", Kind.SWITCH),
    _MODE,
    *_AROUND,
    ToolField("--device", "Device", "The device that computes: auto, cpu or cuda.", Kind.TEXT, "auto"),
)
ASK = _folder_tool(
    "ask",
    "Ask a server for captions",
    "Get captions from a program with the chat interface of OpenAI: LM Studio, llama.cpp or Ollama.",
    "caption.py",
    "ask",
    ToolField(
        "--url",
        "Address",
        "Address of the interface, such as http://127.0.0.1:1234/v1.",
        Kind.TEXT,
        needed=True,
    ),
    ToolField("--model", "Model", "Name of the model in that program.", Kind.TEXT, needed=True),
    ToolField(
        "--prompt",
        "Question",
        "The question about each image.",
        Kind.TEXT,
        "Describe this image in one sentence.",
    ),
    _MODE,
    *_AROUND,
    _LENGTH,
    ToolField("--parallel", "Images at once", "Number of images sent at once.", Kind.WHOLE, 4),
    ToolField("--seconds", "Maximum wait", "Maximum time for one answer, in seconds.", Kind.WHOLE, 300),
    ToolField(
        "--remote",
        "Other networks",
        "Allow images to be sent to an address outside this computer and its network.",
        Kind.SWITCH,
    ),
)
_SHAPE = (
    ToolField(
        "--mode",
        "Existing masks",
        "BLANK makes only missing masks. REPLACE makes all masks again. ADD, SUBTRACT and BLEND change existing masks.",
        Kind.CHOICE,
        MaskMode.BLANK.value,
        tuple(MaskMode),
    ),
    ToolField("--alpha", "Blend share", "Share of the new mask with BLEND, 0 to 1.", Kind.NUMBER, 0.5),
    ToolField(
        "--invert",
        "Invert",
        "Make the found area black and everything else white, so that everything else is learned.",
        Kind.SWITCH,
    ),
    ToolField(
        "--smooth", "Smooth", "Remove specks and holes smaller than this, in pixels. 0: off.", Kind.WHOLE, 0
    ),
    ToolField(
        "--expand", "Expand", "Grow white areas by this many pixels. Below 0: shrink them.", Kind.WHOLE, 0
    ),
    ToolField("--blur", "Blur", "Radius of soft edges, in pixels. 0: hard edges.", Kind.NUMBER, 0.0),
)
MASK_COLOR = _folder_tool(
    "mask_color",
    "Masks by colour",
    "Make masks that are white where an image has a colour, or everywhere else. Useful for plain backgrounds.",
    "mask.py",
    "color",
    ToolField(
        "--color",
        "Colour",
        "The colour to find: #rrggbb, a name such as white, or transparent.",
        Kind.TEXT,
        "white",
    ),
    ToolField(
        "--tolerance", "Tolerance", "How far each colour channel may differ, 0 to 255.", Kind.WHOLE, 30
    ),
    *_SHAPE,
)
MASK_PROMPT = _folder_tool(
    "mask_prompt",
    "Masks by words",
    "Make masks that are white where a CLIPSeg model finds what you name.",
    "mask.py",
    "prompt",
    ToolField(
        "--model",
        "Model",
        "The folder of a CLIPSeg model, or its name on the hub.",
        Kind.FOLDER,
        needed=True,
    ),
    ToolField("--prompt", "Look for", "What to find, such as a face.", Kind.TEXT, needed=True),
    ToolField(
        "--threshold", "Minimum certainty", "Minimum probability of a pixel, 0 to 1.", Kind.NUMBER, 0.3
    ),
    *_SHAPE,
    ToolField("--device", "Device", "The device that computes: auto, cpu or cuda.", Kind.TEXT, "auto"),
)
MASK_BACKGROUND = _folder_tool(
    "mask_background",
    "Masks without background",
    "Make masks that are white where a segmentation model sees an object, and black where it sees background.",
    "mask.py",
    "background",
    ToolField(
        "--model",
        "Model",
        "The folder of a segmentation model, or its name on the hub. One of its labels must be background.",
        Kind.FOLDER,
        needed=True,
    ),
    ToolField(
        "--threshold",
        "Threshold",
        "Minimum probability that a pixel is not background, 0 to 1. 0.5 is usual.",
        Kind.NUMBER,
        0.5,
    ),
    *_SHAPE,
    ToolField("--device", "Device", "The device that computes: auto, cpu or cuda.", Kind.TEXT, "auto"),
)
_ONLY = ToolField("--only", "Only captions with", "Change only captions that contain this text. Empty: all captions.")
REPLACE_TEXT = _folder_tool(
    "replace_text",
    "Replace words",
    "Replace a text, or a tag, in all captions of a folder.",
    "caption.py",
    "replace",
    ToolField("--find", "Find", "The text to find. Upper and lower case must match.", needed=True),
    ToolField("--by", "Replace with", "The new text. Empty: the text is removed."),
    ToolField("--tags", "Whole tags", "Replace only whole tags that are equal to the text.", Kind.SWITCH),
    _ONLY,
)
ADD_TAG = _folder_tool(
    "add_tag",
    "Add tags",
    "Add tags, or a word for your subject, to all captions that do not have them.",
    "caption.py",
    "add",
    ToolField("--tag", "Tags", "The tags to add, separated by commas.", needed=True),
    ToolField("--end", "At the end", "Add them after the other tags instead of in front.", Kind.SWITCH),
    _ONLY,
)
DELETE_TAG = _folder_tool(
    "delete_tag",
    "Delete a tag",
    "Remove a tag from all captions.",
    "caption.py",
    "delete",
    ToolField("--tag", "Tag", "The tag, exactly as it is written.", needed=True),
    _ONLY,
)
COUNT_TAGS = _folder_tool(
    "count_tags",
    "Count tags",
    "Count how many captions have each tag, and list images without a caption.",
    "caption.py",
    "count",
    previews=False,
)
_REPLACE = ToolField(
    "--overwrite", "Replace the file", "Replace the target if it already exists.", Kind.SWITCH
)
_FAMILY = ToolField(
    "--family",
    "Model type",
    "Model type of the base model.",
    Kind.CHOICE,
    choices=tuple(ModelType),
    needed=True,
)
_ADAPTERS = ToolField(
    "--adapters",
    "LoRAs",
    "LoRA files, separated by semicolons. Add =STRENGTH to a file if its strength is not 1.",
    needed=True,
)
_LAYOUT = ToolField(
    "--to",
    "Layout",
    "Layout of the new file. Most programs read KOHYA_LORA.",
    Kind.CHOICE,
    ModelFormat.KOHYA_LORA.value,
    tuple(name.value for name in ModelFormat if name.for_adapters),
)
_NUMBERS = ToolField(
    "--dtype",
    "Number format",
    "Number format of the new file. One of 16 bits halves its size.",
    Kind.CHOICE,
    DataType.FLOAT_32.value,
    tuple(DataType),
)
_TARGET = ToolField("target", "Write to", "The new file.", Kind.TARGET, needed=True)

LOSSES = ToolSpec(
    "losses",
    "Loss of each image",
    "Measure how hard each image is for a model. Images with wrong captions, and images that do not "
    "belong to the set, usually come first.",
    "calculate_loss.py",
    "",
    (
        ToolField(
            "config",
            "Config",
            "Config of the training. Its model and resolution are used.",
            Kind.FILE,
            needed=True,
        ),
        ToolField("--images", "Images", "A folder of images. Empty: the images of the config.", Kind.FOLDER),
        ToolField(
            "--adapter", "LoRA", "Measure the model with this LoRA. Empty: the base model alone.", Kind.FILE
        ),
        ToolField(
            "--levels",
            "Noise levels",
            "Number of noise levels. More are slower but more exact.",
            Kind.WHOLE,
            8,
        ),
        ToolField(
            "target",
            "Table",
            "The CSV file to write. A PNG file of the same name next to it shows the hardest images.",
            Kind.TARGET,
            needed=True,
        ),
        _REPLACE,
    ),
    shows=True,
)
MERGE_MODEL = ToolSpec(
    "merge_model",
    "LoRAs into a model",
    "Write a model with one or several LoRAs built in.",
    "merge.py",
    "model",
    (
        ToolField("base", "Base model", "A file, a folder or a name on the hub.", Kind.MODEL, needed=True),
        _FAMILY,
        _ADAPTERS,
        ToolField(
            "--to",
            "Layout",
            "Write one file, or a diffusers folder.",
            Kind.CHOICE,
            ModelFormat.SAFETENSORS.value,
            (ModelFormat.SAFETENSORS.value, ModelFormat.DIFFUSERS.value),
        ),
        ToolField(
            "--dtype",
            "Number format",
            "Number format of the new model. Empty: that of the base model.",
            Kind.CHOICE,
            choices=tuple(DataType),
        ),
        ToolField("target", "Write to", "The new file or folder.", Kind.TARGET, needed=True),
        _REPLACE,
    ),
)
MERGE_ADAPTERS = ToolSpec(
    "merge_adapters",
    "LoRAs into one",
    "Write one LoRA that does what several do together.",
    "merge.py",
    "adapters",
    (
        _ADAPTERS,
        ToolField(
            "--family",
            "Model type",
            "Model type. Empty: as named in the first file.",
            Kind.CHOICE,
            choices=tuple(ModelType),
        ),
        ToolField(
            "--base",
            "Base model",
            "A file or a folder. Needed only if the layer names cannot be found without it.",
            Kind.FILE,
        ),
        ToolField(
            "--rank",
            "Rank",
            "Rank of the result. Empty: the sum of all ranks, which is exact. A smaller rank is an approximation.",
            Kind.WHOLE,
        ),
        _LAYOUT,
        _NUMBERS,
        _TARGET,
        _REPLACE,
    ),
)
EXTRACT = ToolSpec(
    "extract",
    "LoRA from two models",
    "Write the difference between a model and its base as a LoRA.",
    "merge.py",
    "extract",
    (
        ToolField("base", "Base model", "A file, a folder or a name on the hub.", Kind.MODEL, needed=True),
        ToolField(
            "tuned", "Changed model", "A file, a folder or a name on the hub.", Kind.MODEL, needed=True
        ),
        _FAMILY,
        ToolField(
            "--rank",
            "Rank",
            "Rank of the LoRA. A higher rank comes closer to the difference.",
            Kind.WHOLE,
            32,
        ),
        _LAYOUT,
        _NUMBERS,
        _TARGET,
        _REPLACE,
    ),
)
_AXES = "checkpoint, strength, prompt, seed, steps, cfg or sampler"
SAMPLE = ToolSpec(
    "sample",
    "Try models and LoRAs",
    "Make an image, or a grid of images that differ in two settings, with the model loaded once. Images that were made "
    "before with the same settings are kept.",
    "sample.py",
    "",
    (
        ToolField("--model", "Base model", "A file, a folder or a name on the hub.", Kind.MODEL, needed=True),
        ToolField(
            "--model-type",
            "Model type",
            "Model type of the base model.",
            Kind.CHOICE,
            choices=tuple(ModelType),
            needed=True,
        ),
        ToolField("--out", "Write to", "The folder for the images.", Kind.FOLDER, needed=True),
        ToolField(
            "--prompt",
            "Prompt",
            "What the image should show. Leave it empty if prompts are an axis of the grid.",
        ),
        ToolField(
            "--adapter",
            "LoRAs",
            "LoRA files, separated by semicolons. Add =STRENGTH to a file if its strength is not 1. The folder of a "
            "run stands for its last save.",
        ),
        ToolField(
            "--x", "Columns", f"What varies from left to right, such as strength=0,0.5,1. Possible: {_AXES}."
        ),
        ToolField(
            "--y",
            "Rows",
            "What varies from top to bottom, such as prompt=a cat|a dog, or checkpoint=RUN for all saves of a run.",
        ),
        ToolField("--embedding", "Embeddings", "Embeddings as WORD=FILE, separated by semicolons."),
        ToolField("--negative-prompt", "Negative prompt", "What the image should not show."),
        ToolField("--seed", "Seed", "The same seed starts from the same noise.", Kind.WHOLE, 42),
        ToolField("--steps", "Steps", "Number of denoising steps. Empty: the usual number.", Kind.WHOLE),
        ToolField("--cfg-scale", "CFG scale", "Guidance scale. Empty: the usual scale.", Kind.NUMBER),
        ToolField("--width", "Width", "Width in pixels. Empty: the usual width.", Kind.WHOLE),
        ToolField("--height", "Height", "Height in pixels. Empty: the usual height.", Kind.WHOLE),
        ToolField(
            "--batch-size",
            "Images at once",
            "Number of images made at once, if they differ only in prompt or seed.",
            Kind.WHOLE,
            1,
        ),
    ),
    shows=True,
)
UPDATE = ToolSpec(
    "update",
    "Update the program",
    "Get the new version. Your files and your changes are never touched.",
    "update.py",
)

CAPTION_TOOLS = (DESCRIBE, TAG, ASK)
CAPTION_EDITS = (REPLACE_TEXT, ADD_TAG, DELETE_TAG, COUNT_TAGS)
MASK_TOOLS = (MASK_COLOR, MASK_PROMPT, MASK_BACKGROUND)
DATASET_TOOLS = (RENAME, REWRITE, DUPLICATES, STATISTICS)
MERGE_TOOLS = (MERGE_MODEL, MERGE_ADAPTERS, EXTRACT)
MODEL_TOOLS = (SAMPLE, LOSSES, *MERGE_TOOLS)
