# The program without a window: training, sampling and every other command.
#
#   docker build -t tastemaker .                                                                 for the CPU
#   docker build -t tastemaker --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 \
#                --build-arg REQUIREMENTS=requirements-gpu.txt .                                  for NVIDIA cards
#   docker run --rm tastemaker                                                                   what is there and missing
#   docker run --rm --gpus all -v /my/models:/models -v /my/images:/data -v /my/runs:/app/workspace \
#              tastemaker scripts/train.py --config-path /data/config.json
#
# Folders that are mounted have to be writable for user 1000, or start it with --user "$(id -u):$(id -g)".
FROM python:3.11-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG REQUIREMENTS=requirements.txt

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/models/huggingface \
    TASTEMAKER_SETTINGS=/app/workspace/settings

WORKDIR /app

# the packages first: they stay in the build cache while the program changes
COPY requirements.txt requirements-gpu.txt constraints.txt ./
RUN python -m pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" \
        --requirement requirements.txt --requirement "$REQUIREMENTS" --constraint constraints.txt

RUN useradd --create-home --uid 1000 tastemaker \
    && mkdir -p /models /data /app/workspace /app/workspace-cache \
    && chown tastemaker:tastemaker /app /models /data /app/workspace /app/workspace-cache

COPY LICENSE NOTICE README.md ./
COPY docs ./docs
COPY resources ./resources
COPY training_presets ./training_presets
COPY scripts ./scripts
COPY modules ./modules

USER tastemaker
VOLUME ["/models", "/data", "/app/workspace", "/app/workspace-cache"]
ENTRYPOINT ["python"]
CMD ["scripts/doctor.py"]
