"""The double of a speech model: each word of a sentence becomes ten samples."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from penstock.runtime.speech.speaker import Samples, SpeakerInfo, Tokens

RATE = 8000
SAMPLES_PER_WORD = 10
SILENT = "silent"
BROKEN = "broken"
OUT_OF_RANGE = "range"


class ToneSpeaker:
    """Implements `penstock.runtime.speech.speaker.Speaker`.

    A piece is the lengths of the words of a sentence. Its samples are the lengths in thousandths,
    divided by the speed; the voice "low" halves them. A sentence of SILENT has no sounds, and one
    with BROKEN or OUT_OF_RANGE fails. With `held`, each piece waits for a permit of `permits`.
    """

    report = "no memory"
    info = SpeakerInfo("tones", "fp_tones", RATE, ("high", "low"), 0)

    def __init__(self, *, held: bool = False) -> None:
        self.held = held
        self.permits = threading.Semaphore(0)
        self.sentences: list[str] = []
        self.spoken: list[Tokens] = []
        self.closed = False

    def pieces(self, sentence: str, voice: str) -> Sequence[Tokens]:
        self.sentences.append(sentence)
        words = sentence.split()
        if SILENT in sentence:
            return []
        if BROKEN in sentence:
            return [(0,)]
        if OUT_OF_RANGE in sentence:
            return [(-1,)]
        return [tuple(map(len, words))]

    def speak(self, piece: Tokens, voice: str, speed: float) -> Samples:
        if self.held:
            self.permits.acquire()
        if piece == (0,):
            raise RuntimeError("a broken piece")
        if piece == (-1,):
            raise IndexError("a code outside its table")
        self.spoken.append(piece)
        loudness = np.array(piece, np.float32) / 1000 / speed
        return np.repeat(loudness / (2 if voice == "low" else 1), SAMPLES_PER_WORD)

    def close(self) -> None:
        self.closed = True
