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
_SUBFOLDERS = ToolField("--subfolders", "Folders in it", "Images of folders in the folder too.", Kind.SWITCH)
_OVERWRITE = ToolField(
    "--overwrite",
    "Replace files",
    "Files whose names are needed may be taken out. Undo brings them back.",
    Kind.SWITCH,
)

RENAME = ToolSpec(
    "rename",
    "Rename images",
    "New names for all images of a folder. Captions and masks get the same names.",
    "dataset.py",
    "rename",
    (
        _FOLDER,
        ToolField("--pattern", "Pattern", f"The new name without its ending, with {FIELDS}.", needed=True),
        ToolField("--start", "First number", "Numbers are counted in each folder.", Kind.WHOLE, 1),
        _SUBFOLDERS,
        _OVERWRITE,
    ),
    undoes=True,
)
REWRITE = ToolSpec(
    "rewrite",
    "Resize and convert",
    "Make images smaller, turn or convert them, or remove their metadata. Masks follow their image.",
    "dataset.py",
    "rewrite",
    (
        _FOLDER,
        ToolField("--edge", "Longer side", "Pixels of the longer side. Empty leaves the size.", Kind.WHOLE),
        ToolField(
            "--area",
            "Area as of",
            "Side of a square in pixels; images get its area. 1024 is usual for SDXL.",
            Kind.WHOLE,
        ),
        ToolField("--enlarge", "Enlarge too", "Small images are made larger as well.", Kind.SWITCH),
        ToolField("--to", "Format", "The new format. Empty leaves it.", Kind.CHOICE, choices=tuple(ENDINGS)),
        ToolField(
            "--quality", "Quality", "Of JPEG and WebP, 1 to 100. 100 is lossless for WebP.", Kind.WHOLE, 95
        ),
        ToolField("--turn", "Turn upright", "Turn the pixels as the camera noted.", Kind.SWITCH),
        ToolField(
            "--strip",
            "Remove metadata",
            "Prompts of generated images are lost too. Colour profiles stay.",
            Kind.SWITCH,
        ),
        _SUBFOLDERS,
        _OVERWRITE,
    ),
    undoes=True,
)
DUPLICATES = ToolSpec(
    "duplicates",
    "Find duplicates",
    "List images that equal an earlier one, byte for byte or to the eye.",
    "dataset.py",
    "duplicates",
    (
        _FOLDER,
        ToolField(
            "--distance",
            "Distance",
            "How different near-duplicates may be: 0 the same to the eye, 4 usual, 10 loose.",
            Kind.WHOLE,
            4,
        ),
        ToolField(
            "--remove", "Take them out", "With captions and masks. Undo brings them back.", Kind.SWITCH
        ),
        _SUBFOLDERS,
    ),
    undoes=True,
)
STATISTICS = ToolSpec(
    "statistics",
    "Statistics",
    "Sizes, shapes, buckets, tags, and images without a caption.",
    "dataset.py",
    "stats",
    (
        _FOLDER,
        ToolField("--resolution", "Resolution", "Of the training, for its buckets.", Kind.WHOLE, 1024),
        _SUBFOLDERS,
    ),
    previews=False,
)
_MODE = ToolField(
    "--mode",
    "Captions that exist",
    "BLANK writes only missing and empty ones, REPLACE all, APPEND adds to them. Undo brings the old ones back.",
    Kind.CHOICE,
    Mode.BLANK.value,
    tuple(Mode),
)
_AROUND = (
    ToolField("--prefix", "Before", "Text before each new caption, such as a word for your subject."),
    ToolField("--suffix", "After", "Text after each new caption."),
)
_PROMPT = ToolField(
    "--prompt", "Question", "What is asked about each image. Empty where the model needs none."
)
_LENGTH = ToolField("--length", "Longest text", "In tokens; a word is about 1.3 tokens.", Kind.WHOLE, 120)

DESCRIBE = ToolSpec(
    "describe",
    "Describe images",
    "Captions by a model on this computer: BLIP, Qwen-VL, LLaVA and others of transformers.",
    "caption.py",
    "describe",
    (
        _FOLDER,
        ToolField(
            "--model", "Model", "A folder, or a name on the Hugging Face hub.", Kind.FOLDER, needed=True
        ),
        _PROMPT,
        _MODE,
        *_AROUND,
        _LENGTH,
        ToolField("--batch", "At once", "Images. More are faster and need more memory.", Kind.WHOLE, 1),
        ToolField(
            "--dtype",
            "Number format",
            "BFLOAT_16 needs half the memory of FLOAT_32.",
            Kind.CHOICE,
            DataType.FLOAT_32.value,
            (DataType.FLOAT_32.value, DataType.FLOAT_16.value, DataType.BFLOAT_16.value),
        ),
        ToolField("--device", "Device", "auto, cpu or cuda.", Kind.TEXT, "auto"),
        _SUBFOLDERS,
    ),
    undoes=True,
)
TAG = ToolSpec(
    "tag",
    "Tag images",
    "Lists of tags by a WD tagger on this computer.",
    "caption.py",
    "tag",
    (
        _FOLDER,
        ToolField(
            "--model",
            "Tagger",
            "Its folder, with model.onnx and selected_tags.csv.",
            Kind.FOLDER,
            needed=True,
        ),
        ToolField("--threshold", "Least certainty", "Of a tag, 0 to 1.", Kind.NUMBER, 0.35),
        ToolField("--character", "For characters", "The same for names of characters.", Kind.NUMBER, 0.85),
        ToolField("--drop", "Never write", "Tags, separated by commas."),
        ToolField("--underscores", "Keep underscores", "long_hair instead of long hair.", Kind.SWITCH),
        _MODE,
        *_AROUND,
        ToolField("--device", "Device", "auto, cpu or cuda.", Kind.TEXT, "auto"),
        _SUBFOLDERS,
    ),
    undoes=True,
)
ASK = ToolSpec(
    "ask",
    "Ask a server for captions",
    "Captions by a program with the chat interface of OpenAI: LM Studio, llama.cpp, Ollama.",
    "caption.py",
    "ask",
    (
        _FOLDER,
        ToolField(
            "--url", "Address", "Of its interface, such as http://127.0.0.1:1234/v1.", Kind.TEXT, needed=True
        ),
        ToolField("--model", "Model", "Its name there.", Kind.TEXT, needed=True),
        ToolField(
            "--prompt",
            "Question",
            "What is asked about each image.",
            Kind.TEXT,
            "Describe this image in one sentence.",
        ),
        _MODE,
        *_AROUND,
        _LENGTH,
        ToolField("--parallel", "At once", "Images.", Kind.WHOLE, 4),
        ToolField("--seconds", "Longest wait", "Seconds for one answer.", Kind.WHOLE, 300),
        ToolField(
            "--remote",
            "Outside this network",
            "The images may be sent to an address outside this computer and its network.",
            Kind.SWITCH,
        ),
        _SUBFOLDERS,
    ),
    undoes=True,
)
_SHAPE = (
    ToolField(
        "--mode",
        "Masks that exist",
        "BLANK makes only missing masks. REPLACE makes all. ADD, SUBTRACT and BLEND change those that exist.",
        Kind.CHOICE,
        MaskMode.BLANK.value,
        tuple(MaskMode),
    ),
    ToolField("--alpha", "Share of the new", "Of the new mask with BLEND, 0 to 1.", Kind.NUMBER, 0.5),
    ToolField(
        "--invert", "Turn round", "What is found is black, the rest is white and learned.", Kind.SWITCH
    ),
    ToolField("--smooth", "Smooth", "Pixels. Specks and holes smaller than this go.", Kind.WHOLE, 0),
    ToolField("--expand", "Expand", "Pixels by which white grows; below 0 it shrinks.", Kind.WHOLE, 0),
    ToolField("--blur", "Blur", "Radius in pixels of soft edges.", Kind.NUMBER, 0.0),
)
MASK_COLOR = ToolSpec(
    "mask_color",
    "Masks by colour",
    "Masks that are white where an image has a colour, or everywhere else: for plain backgrounds.",
    "mask.py",
    "color",
    (
        _FOLDER,
        ToolField("--color", "Colour", "#rrggbb, a name such as white, or transparent.", Kind.TEXT, "white"),
        ToolField("--tolerance", "Tolerance", "How far each channel may be off, 0 to 255.", Kind.WHOLE, 30),
        *_SHAPE,
        _SUBFOLDERS,
    ),
    undoes=True,
)
MASK_PROMPT = ToolSpec(
    "mask_prompt",
    "Masks by words",
    "Masks that are white where a CLIPSeg model finds what you name.",
    "mask.py",
    "prompt",
    (
        _FOLDER,
        ToolField(
            "--model", "Model", "A folder of CLIPSeg, or its name on the hub.", Kind.FOLDER, needed=True
        ),
        ToolField("--prompt", "Look for", "Such as: a face.", Kind.TEXT, needed=True),
        ToolField("--threshold", "Least certainty", "Of a pixel, 0 to 1.", Kind.NUMBER, 0.3),
        *_SHAPE,
        ToolField("--device", "Device", "auto, cpu or cuda.", Kind.TEXT, "auto"),
        _SUBFOLDERS,
    ),
    undoes=True,
)
MASK_BACKGROUND = ToolSpec(
    "mask_background",
    "Masks without background",
    "Masks that are white where a segmentation model sees a thing, and black where it sees background.",
    "mask.py",
    "background",
    (
        _FOLDER,
        ToolField(
            "--model",
            "Model",
            "A folder of a segmentation model, or its name on the hub. One of its labels is background.",
            Kind.FOLDER,
            needed=True,
        ),
        ToolField(
            "--threshold",
            "Threshold",
            "Minimum probability, 0 to 1, that a pixel is not background; 0.5 is usual.",
            Kind.NUMBER,
            0.5,
        ),
        *_SHAPE,
        ToolField("--device", "Device", "auto, cpu or cuda.", Kind.TEXT, "auto"),
        _SUBFOLDERS,
    ),
    undoes=True,
)
_ONLY = ToolField("--only", "Only where", "Only captions that contain this text. Empty for all.")
REPLACE_TEXT = ToolSpec(
    "replace_text",
    "Replace words",
    "Replace a text, or a tag, in all captions of a folder.",
    "caption.py",
    "replace",
    (
        _FOLDER,
        ToolField("--find", "Find", "Upper and lower case must match.", needed=True),
        ToolField("--by", "Replace with", "Empty removes it."),
        ToolField("--tags", "Whole tags", "Only tags that are exactly this.", Kind.SWITCH),
        _ONLY,
        _SUBFOLDERS,
    ),
    undoes=True,
)
ADD_TAG = ToolSpec(
    "add_tag",
    "Add tags",
    "Put tags, or a word for your subject, into all captions that do not have them.",
    "caption.py",
    "add",
    (
        _FOLDER,
        ToolField("--tag", "Tags", "Separated by commas.", needed=True),
        ToolField("--end", "At the end", "After the other tags instead of in front.", Kind.SWITCH),
        _ONLY,
        _SUBFOLDERS,
    ),
    undoes=True,
)
DELETE_TAG = ToolSpec(
    "delete_tag",
    "Delete a tag",
    "Remove a tag from all captions.",
    "caption.py",
    "delete",
    (_FOLDER, ToolField("--tag", "Tag", "Exactly as it is written.", needed=True), _ONLY, _SUBFOLDERS),
    undoes=True,
)
COUNT_TAGS = ToolSpec(
    "count_tags",
    "Count tags",
    "How many captions have each tag, and which images have no caption.",
    "caption.py",
    "count",
    (_FOLDER, _SUBFOLDERS),
    previews=False,
)
_REPLACE = ToolField("--overwrite", "Replace the file", "The target may exist already.", Kind.SWITCH)
_FAMILY = ToolField(
    "--family", "Model type", "Of the base model.", Kind.CHOICE, choices=tuple(ModelType), needed=True
)
_ADAPTERS = ToolField(
    "--adapters", "LoRAs", "Files, separated by ;, each with =STRENGTH if that is not 1.", needed=True
)
_LAYOUT = ToolField(
    "--to",
    "Layout",
    "Of the file. KOHYA_LORA is read by most programs.",
    Kind.CHOICE,
    ModelFormat.KOHYA_LORA.value,
    tuple(name.value for name in ModelFormat if name.for_adapters),
)
_NUMBERS = ToolField(
    "--dtype",
    "Number format",
    "FLOAT_16 halves the file.",
    Kind.CHOICE,
    DataType.FLOAT_32.value,
    tuple(DataType),
)
_TARGET = ToolField("target", "Write to", "The new file.", Kind.TARGET, needed=True)

LOSSES = ToolSpec(
    "losses",
    "Loss of each image",
    "How hard each image is for a model. Wrong captions and images that do not belong come first.",
    "calculate_loss.py",
    "",
    (
        ToolField(
            "config", "Config", "Of the training: its model and its resolution.", Kind.FILE, needed=True
        ),
        ToolField("--images", "Images", "A folder; empty for the images of the config.", Kind.FOLDER),
        ToolField("--adapter", "LoRA", "Measured with the model. Empty for the base model.", Kind.FILE),
        ToolField("--levels", "Noise levels", "More are slower and more exact.", Kind.WHOLE, 8),
        ToolField("target", "Table", "The CSV file to write.", Kind.TARGET, needed=True),
        _REPLACE,
    ),
)
MERGE_MODEL = ToolSpec(
    "merge_model",
    "LoRAs into a model",
    "Write a model with one or several LoRAs built in.",
    "merge.py",
    "model",
    (
        ToolField("base", "Base model", "File, folder or name on the hub.", Kind.MODEL, needed=True),
        _FAMILY,
        _ADAPTERS,
        ToolField(
            "--to",
            "Layout",
            "One file, or a folder of diffusers.",
            Kind.CHOICE,
            ModelFormat.SAFETENSORS.value,
            (ModelFormat.SAFETENSORS.value, ModelFormat.DIFFUSERS.value),
        ),
        ToolField(
            "--dtype", "Number format", "Empty keeps that of the model.", Kind.CHOICE, choices=tuple(DataType)
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
            "Empty takes what the first file says.",
            Kind.CHOICE,
            choices=tuple(ModelType),
        ),
        ToolField("--base", "Base model", "Only for its names; often not needed.", Kind.FILE),
        ToolField(
            "--rank", "Rank", "Empty is exact: all ranks added. Smaller is nearly the same.", Kind.WHOLE
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
    "Write the difference of a model and its base as a LoRA.",
    "merge.py",
    "extract",
    (
        ToolField("base", "Base model", "File, folder or name on the hub.", Kind.MODEL, needed=True),
        ToolField("tuned", "Changed model", "File, folder or name on the hub.", Kind.MODEL, needed=True),
        _FAMILY,
        ToolField("--rank", "Rank", "Larger is nearer to the difference.", Kind.WHOLE, 32),
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
        ToolField("--model", "Base model", "File, folder or name on the hub.", Kind.MODEL, needed=True),
        ToolField(
            "--model-type",
            "Model type",
            "Of the base model.",
            Kind.CHOICE,
            choices=tuple(ModelType),
            needed=True,
        ),
        ToolField("--out", "Write to", "The folder for the images.", Kind.FOLDER, needed=True),
        ToolField("--prompt", "Prompt", "What to show. Empty where prompts are in the grid."),
        ToolField(
            "--adapter",
            "LoRAs",
            "Files, separated by ;, each with =STRENGTH if that is not 1. The folder of a run is its last save.",
        ),
        ToolField(
            "--x", "Columns", f"What differs from left to right, such as strength=0,0.5,1. Possible: {_AXES}."
        ),
        ToolField(
            "--y",
            "Rows",
            "What differs from top to bottom, such as prompt=a cat|a dog, or checkpoint=RUN for all saves of a run.",
        ),
        ToolField("--embedding", "Embeddings", "WORD=FILE, separated by ;."),
        ToolField("--negative-prompt", "Negative prompt", "What not to show."),
        ToolField("--seed", "Seed", "The same seed starts from the same noise.", Kind.WHOLE, 42),
        ToolField("--steps", "Steps", "Empty takes the usual number.", Kind.WHOLE),
        ToolField("--cfg-scale", "CFG scale", "Empty takes the usual scale.", Kind.NUMBER),
        ToolField("--width", "Width", "Pixels. Empty takes the usual size.", Kind.WHOLE),
        ToolField("--height", "Height", "Pixels. Empty takes the usual size.", Kind.WHOLE),
        ToolField("--batch-size", "At once", "Images that differ in prompt or seed alone.", Kind.WHOLE, 1),
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
