"""Image towers and projectors of transformers. Runs in a peer's Python.

`make FOLDER SHAPE DTYPE` writes a model with random weights, whose language model is tiny. `serve
FOLDER THREADS` reads paths of tiles [N, height, width, 3] (uint8) on stdin; it writes the file with
the rows and the CPU seconds to stdout. 0 threads: torch's default.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers

TINY = {"intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8}
SHAPES = {
    "smolvlm-256m": (
        "SmolVLM",
        {
            "model_type": "llama",
            "hidden_size": 576,
            **TINY,
            **HEADS,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "pad_token_id": 0,
        },
        {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 512,
            "patch_size": 16,
        },
        {"image_token_id": 63, "scale_factor": 4},
        (
            "SmolVLMImageProcessorPil",
            {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        ),
    ),
    "llava-1.5": (
        "Llava",
        {"model_type": "llama", "hidden_size": 4096, **TINY, **HEADS},
        {
            "model_type": "clip_vision_model",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "image_size": 336,
            "patch_size": 14,
        },
        {"image_token_index": 63},
        (
            "CLIPImageProcessorPil",
            {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
        ),
    ),
    "gemma-3": (
        "Gemma3",
        {"hidden_size": 2560, **TINY, **HEADS, "head_dim": 64},
        {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 896,
            "patch_size": 14,
            "vision_use_head": False,
        },
        {"mm_tokens_per_image": 256, "image_token_index": 63},
        ("Gemma3ImageProcessorPil", {"size": {"height": 896, "width": 896}}),
    ),
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def make(folder: str, shape: str, dtype: str) -> None:
    name, text, vision, whole, (processor, sizes) = SHAPES[shape]
    config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=vision, **whole)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).to(DTYPES[dtype])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.03)
    model.save_pretrained(folder)
    getattr(transformers, processor)(**sizes).save_pretrained(folder)


@torch.inference_mode()
def serve(folder: str, threads: int) -> None:
    if threads:
        torch.set_num_threads(threads)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype="auto").eval()
    keys = json.loads((Path(folder) / "preprocessor_config.json").read_text())
    mean, std = (torch.tensor(keys[f"image_{name}"])[:, None, None] for name in ("mean", "std"))
    for line in sys.stdin:
        tiles = torch.from_numpy(np.load(line.strip()))
        began = time.process_time()
        pixels = (tiles.permute(0, 3, 1, 2).float() / 255 - mean) / std
        pixels = pixels.to(model.dtype)
        if "SmolVLM" in type(model).__name__:
            pixels = pixels[None]
        found = model.get_image_features(pixel_values=pixels).pooler_output
        seconds = time.process_time() - began
        rows = torch.cat([part.reshape(-1, part.shape[-1]) for part in found]).float().numpy()
        path = Path(folder) / "rows.npy"
        np.save(path, rows)
        print(json.dumps({"rows": str(path), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(*sys.argv[2:])
    else:
        serve(sys.argv[2], int(sys.argv[3]))
