"""A Whisper implementation as a worker. Runs in the virtual environment of its library.

usage: python whisper_worker.py ENGINE MODEL THREADS
ENGINE is penstock=KIND (f32, int8 or the type of the file), faster-whisper=TYPE, whisper.cpp or
transformers=DTYPE; MODEL is its folder or file.

Requests and answers are lines of JSON; the first line says that the model is loaded:

- {"do": "encode", "samples": FILE}: encode the first 30 seconds of an .npy file (16 kHz, float32);
  {"cpu_s": SECONDS} without the features of the audio.
- {"do": "transcribe", "samples": FILE}: {"text": TEXT}, greedy, in English, without another try
  at a higher temperature. Not for penstock, which is measured as a server.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

WINDOW = 480_000


class Penstock:
    def __init__(self, kind: str, model: str, threads: int) -> None:
        from penstock import _native
        from penstock.kernels.native.ops import NativeOps
        from penstock.models.hub.model_files import ModelFiles
        from penstock.models.whisper.loader import load_whisper
        from penstock.models.whisper.processor import WhisperProcessor
        from penstock.models.whisper.tower import WhisperTower

        files = ModelFiles("whisper", "folder", Path(model))
        loaded = load_whisper(
            files, "f32" if kind == "f32" else "auto", "int8" if kind == "int8" else None
        )
        encoder = loaded.spec.encoder
        self.processor = WhisperProcessor(encoder.mels, encoder.frames)
        self.ops = NativeOps.eager(_native.ThreadPool(threads))
        self.tower = WhisperTower(loaded.spec, loaded.weights.tensors, self.ops)

    def encode(self, samples: np.ndarray) -> float:
        from penstock.models.media.prepared import Sound
        from penstock.models.towers.piece_budget import PieceBudget

        recording = self.processor.audio(Sound(samples, 16_000)).array()
        window = self.processor.window(recording, 0)
        began = time.process_time()
        for _ in self.tower.encode(self.ops, window, PieceBudget()):
            pass
        return time.process_time() - began


class FasterWhisper:
    def __init__(self, kind: str, model: str, threads: int) -> None:
        from faster_whisper import WhisperModel

        self.model = WhisperModel(model, "cpu", compute_type=kind, cpu_threads=threads)

    def encode(self, samples: np.ndarray) -> float:
        features = self.model.feature_extractor(samples)[:, :3000]
        began = time.process_time()
        np.asarray(self.model.encode(features).to_device(self.device()))
        return time.process_time() - began

    def device(self) -> Any:
        import ctranslate2

        return ctranslate2.Device.cpu

    def transcribe(self, samples: np.ndarray) -> str:
        segments, _ = self.model.transcribe(samples, language="en", beam_size=1, temperature=0.0)
        return "".join(segment.text for segment in segments)


class WhisperCpp:
    def __init__(self, kind: str, model: str, threads: int) -> None:
        import _pywhispercpp
        from pywhispercpp.model import Model

        self.native, self.threads = _pywhispercpp, threads
        self.model = Model(
            model,
            n_threads=threads,
            context_params={"flash_attn": True},
            language="en",
            temperature_inc=0.0,
            print_progress=False,
            print_realtime=False,
            redirect_whispercpp_logs_to=None,
        )

    def encode(self, samples: np.ndarray) -> float:
        context = self.model._ctx
        self.native.whisper_pcm_to_mel(context, samples, len(samples), self.threads)
        began = time.process_time()
        self.native.whisper_encode(context, 0, self.threads)
        return time.process_time() - began

    def transcribe(self, samples: np.ndarray) -> str:
        return "".join(segment.text for segment in self.model.transcribe(samples))


class Transformers:
    def __init__(self, kind: str, model: str, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self.torch, self.dtype = torch, getattr(torch, kind)
        self.model = transformers.WhisperForConditionalGeneration.from_pretrained(
            model, dtype=self.dtype
        ).eval()
        self.features = transformers.WhisperFeatureExtractor(self.model.config.num_mel_bins)
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))

    def encode(self, samples: np.ndarray) -> float:
        features = self.prepared(samples)
        with self.torch.inference_mode():
            began = time.process_time()
            self.model.model.encoder(features)
            return time.process_time() - began

    def transcribe(self, samples: np.ndarray) -> str:
        from transformers import GenerationConfig, GenerationMixin

        names = ("startoftranscript", "en", "transcribe", "notimestamps")
        start = [self.tokenizer.token_to_id(f"<|{name}|>") for name in names]
        end = self.tokenizer.token_to_id("<|endoftext|>")
        settings = GenerationConfig(
            max_new_tokens=400,
            do_sample=False,
            decoder_start_token_id=start[0],
            eos_token_id=end,
            pad_token_id=end,
        )
        # Whisper's own `generate` adds windows and other tries; this is its greedy decoding.
        with self.torch.inference_mode():
            found = GenerationMixin.generate(
                self.model,
                self.prepared(samples),
                generation_config=settings,
                decoder_input_ids=self.torch.tensor([start]),
            )
        return self.tokenizer.decode(found[0].tolist())

    def prepared(self, samples: np.ndarray) -> Any:
        found = self.features(samples, sampling_rate=16_000, return_tensors="pt")
        return found.input_features.to(self.dtype)


ENGINES: dict[str, Any] = {
    "penstock": Penstock,
    "faster-whisper": FasterWhisper,
    "whisper.cpp": WhisperCpp,
    "transformers": Transformers,
}

if __name__ == "__main__":
    # Libraries log to standard output, which is reserved for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, model, threads = sys.argv[1:4]
    library, _, kind = name.partition("=")
    engine = ENGINES[library](kind, model, int(threads))
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        samples = np.load(job["samples"])
        if job["do"] == "encode":
            answer = {"cpu_s": engine.encode(samples[:WINDOW])}
        else:
            answer = {"text": engine.transcribe(samples)}
        print(json.dumps(answer), file=answers, flush=True)
