"""Mean-pooled, normalized float32 states of a transformers encoder. Runs in a peer's Python.

Reads JSON lines of token ids (sentences of equal length) on stdin; writes vectors and CPU seconds
to stdout. 0 threads: torch's default.
"""

import json
import sys
import time

import torch
import transformers


@torch.inference_mode()
def main(folder: str, threads: int) -> None:
    if threads:
        torch.set_num_threads(threads)
    model = transformers.AutoModel.from_pretrained(folder).float().eval()
    for line in sys.stdin:
        ids = torch.tensor(json.loads(line))
        began = time.process_time()
        states = model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        vectors = torch.nn.functional.normalize(states.mean(1), dim=1)
        seconds = time.process_time() - began
        print(json.dumps({"vectors": vectors.tolist(), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
