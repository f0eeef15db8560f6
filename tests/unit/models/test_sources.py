"""A model's name resolves to its files, or to an error that says where it was looked for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.errors import ModelError
from penstock.models.hub import catalogue, sources
from penstock.models.hub.catalogue import CATALOGUE, DEFAULT_MODEL, CatalogueEntry
from penstock.models.hub.hub_access import HubAccess
from penstock.models.hub.media_model_files import is_complete_media_model
from penstock.models.hub.mmproj_files import choose_mmproj
from penstock.models.hub.model_files import ModelFiles, fingerprint
from penstock.models.hub.sources import resolve_model
from tests.support.servers.file_server import Files, publish, serving

WEIGHTS = b"weights" * 1000
SENTENCE = {
    "modules.json": json.dumps(
        [
            {"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
            {"path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
        ]
    ).encode(),
    "sentence_bert_config.json": b"{}",
    "config_sentence_transformers.json": b"{}",
    "1_Pooling/config.json": b'{"pooling_mode_cls_token": true}',
    "2_Dense/config.json": b"{}",
    "2_Dense/model.safetensors": b"dense",
}
SHARDED = {
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {f"w{i}": f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}}
    ).encode(),
    "model-00001-of-00002.safetensors": b"one",
    "model-00002-of-00002.safetensors": b"two",
}
SMALL = {"config.json": b"{}", "tokenizer.json": b"{}"}
FOLDER = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}


@pytest.fixture
def hub() -> Iterator[Files]:
    with serving(Files()) as files:
        yield files


def test_a_path_of_a_folder_or_file_is_that_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    folder = resolve_model(str(tmp_path), tmp_path / "home")
    assert folder == ModelFiles(tmp_path.name, "folder", tmp_path)
    file = resolve_model(str(tmp_path / "m.gguf"), tmp_path / "home")
    assert file == ModelFiles("m", "gguf", tmp_path / "m.gguf")
    assert not (tmp_path / "home").exists()


def test_a_set_of_gguf_files_is_one_model(tmp_path: Path) -> None:
    names = [f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    files = resolve_model(str(tmp_path), tmp_path)
    assert files.path == tmp_path / names[0]
    assert resolve_model(str(tmp_path / names[0]), tmp_path).model_id == "m"
    before = fingerprint(files)
    (tmp_path / names[1]).write_bytes(b"other weights")
    assert fingerprint(files) != before


def test_a_folder_with_one_gguf_is_that_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert resolve_model(str(tmp_path), tmp_path).path == tmp_path / "m.gguf"
    (tmp_path / "n.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="several"):
        resolve_model(str(tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["", " ", "nothing", "a/b/c", "a/..", "a/b.c/.."])
def test_an_unknown_name_says_where_names_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="`penstock models` lists the known names"):
        resolve_model(name, tmp_path)


@pytest.mark.parametrize(
    "name", ["x.gguf", "./x.gguf", "../a", "/x/y", "a/b.gguf", "a/b/../c.gguf", "~/no/such", "./a"]
)
def test_a_path_that_does_not_exist_is_reported_as_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=f"{re.escape(name)}: no such file or folder"):
        resolve_model(name, tmp_path, HubAccess(offline=True))


def test_a_name_too_long_for_a_path_is_shortened_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^x{80}\.\.\. is not a usable path: File name too long"):
        resolve_model("x" * 300, tmp_path)


def test_the_home_of_an_unknown_user_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="~nobody-at-all/x is not a usable path"):
        resolve_model("~nobody-at-all/x", tmp_path)


PIPELINE = {
    "model_index.json": json.dumps(
        {
            "_class_name": "FluxPipeline",
            "transformer": ["diffusers", "FluxTransformer2DModel"],
            "tokenizer": ["transformers", "CLIPTokenizer"],
            "safety_checker": [None, None],
        }
    ).encode(),
    "transformer/config.json": b"{}",
    "transformer/diffusion_pytorch_model.safetensors.index.json": json.dumps(
        {"weight_map": {"w": "diffusion_pytorch_model-00001-of-00001.safetensors"}}
    ).encode(),
    "transformer/diffusion_pytorch_model-00001-of-00001.safetensors": b"weights",
    "tokenizer/vocab.json": b"{}",
    "tokenizer/merges.txt": b"",
}
KOKORO = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "onnx/model.onnx": b"model",
    "voices/af_heart.bin": b"voice",
}


@pytest.mark.parametrize(("content", "kind"), [(PIPELINE, "pipeline"), (KOKORO, "voice")])
def test_image_and_speech_models_are_downloaded(
    hub: Files, tmp_path: Path, content: dict[str, bytes], kind: str
) -> None:
    others = {
        "flux1.safetensors": b"no",
        "README.md": b"no",
        "other/config.json": b"no",
        "onnx/model_q8f16.onnx": b"no",
        "transformer/diffusion_pytorch_model.fp16.safetensors": b"no",
        "transformer/diffusion_pytorch_model.safetensors.index.fp16.json": b"no",
        "transformer/diffusion_pytorch_model.bin": b"no",
    }
    if kind == "pipeline":
        others["voices/af_heart.bin"] = b"no"
    publish(hub, "who/what", {**content, **others})
    files = resolve_model("who/what", tmp_path, HubAccess(hub.url))
    assert files.kind == kind
    root = files.path
    found = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*.*")}
    assert found == content


def test_an_incomplete_snapshot_of_a_pipeline_is_not_used(hub: Files, tmp_path: Path) -> None:
    snapshot = tmp_path / "pipeline"
    for name, data in PIPELINE.items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(data)
    assert is_complete_media_model(snapshot)
    (snapshot / "transformer/diffusion_pytorch_model-00001-of-00001.safetensors").unlink()
    assert not is_complete_media_model(snapshot)
    assert not is_complete_media_model(tmp_path)


def test_a_repository_is_fetched_once_and_found_again_offline(hub: Files, tmp_path: Path) -> None:
    publish(hub, "who/what", {**FOLDER, "README.md": b"no", "pytorch_model.bin": b"no"})
    files = resolve_model("who/what", tmp_path, HubAccess(hub.url, token="secret"))
    assert files.kind == "folder"
    assert {path.name: path.read_bytes() for path in files.path.iterdir()} == FOLDER
    assert set(hub.authorizations) == {"Bearer secret"}
    again = resolve_model("who/what", tmp_path, HubAccess("http://127.0.0.1:9", offline=True))
    assert again == files


@pytest.mark.parametrize(
    "content",
    [
        {**FOLDER, **SENTENCE},
        {**SMALL, **SHARDED},
        {**FOLDER, **dict.fromkeys(("special_tokens_map.json", "added_tokens.json"), b"{}")},
        {**FOLDER, "chat_template.jinja": b"x", "additional_chat_templates/tool_use.jinja": b"y"},
    ],
)
def test_all_files_of_a_model_are_downloaded(
    hub: Files, tmp_path: Path, content: dict[str, bytes]
) -> None:
    others = {"onnx/config.json": b"no", "model-00003-of-00003.safetensors": b"no"}
    publish(hub, "who/what", {**content, **others, "1_Pooling/README.md": b"no"})
    root = resolve_model("who/what", tmp_path, HubAccess(hub.url)).path
    found = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*.*")}
    assert found == content


@pytest.mark.parametrize(
    "path", ["../x", "/etc", "a/../../x", "1_Pooling/..", "..", "a b", "1_Pooling%2f.."]
)
def test_a_module_outside_the_repository_is_not_fetched(
    hub: Files, tmp_path: Path, path: str
) -> None:
    modules = json.dumps([{"path": path, "type": "sentence_transformers.models.Pooling"}]).encode()
    publish(hub, "who/what", {**FOLDER, **SENTENCE, "modules.json": modules})
    with pytest.raises(ModelError, match=r"is outside the folder|not found at main"):
        resolve_model("who/what", tmp_path, HubAccess(hub.url))
    assert all("/.." not in asked for asked, _ in hub.requests)


@pytest.mark.parametrize(
    "lacking",
    ["model.safetensors", "tokenizer.json", "1_Pooling/config.json", "2_Dense/model.safetensors"],
)
def test_a_missing_file_of_a_repository_is_named_and_found_later(
    hub: Files, tmp_path: Path, lacking: str
) -> None:
    whole = {**FOLDER, **SENTENCE}
    partial = {name: data for name, data in whole.items() if name != lacking}
    publish(hub, "who/what", {**partial, "pytorch_model.bin": b"no"})
    with pytest.raises(ModelError, match=f"who/what: {lacking} not found at main"):
        resolve_model("who/what", tmp_path, HubAccess(hub.url))
    publish(hub, "who/what", whole)
    assert (resolve_model("who/what", tmp_path, HubAccess(hub.url)).path / lacking).exists()


def test_a_missing_shard_is_named(hub: Files, tmp_path: Path) -> None:
    shard = "model-00002-of-00002.safetensors"
    content = {name: data for name, data in SHARDED.items() if name != shard}
    publish(hub, "who/what", {**SMALL, **content})
    with pytest.raises(ModelError, match=f"{shard} not found"):
        resolve_model("who/what", tmp_path, HubAccess(hub.url))


@pytest.mark.parametrize("name", ["who/what", "who/what/c.gguf"])
def test_gguf_files_of_a_repository_are_listed_if_none_is_named(
    hub: Files, tmp_path: Path, name: str
) -> None:
    publish(hub, "who/what", {"a.gguf": b"GGUF a", "b.gguf": b"GGUF b"})
    with pytest.raises(
        ModelError, match=r"one of its GGUF files: who/what/a\.gguf \(also b\.gguf\)"
    ):
        resolve_model(name, tmp_path, HubAccess(hub.url))


def test_an_interrupted_fetch_ends_with_one_revision(hub: Files, tmp_path: Path) -> None:
    partial = tmp_path / "models" / "who--what.partial"
    partial.mkdir(parents=True)
    for name in ("config.json", "generation_config.json", "model.safetensors.part"):
        (partial / name).write_bytes(b"of before")
    (partial / "tokenizer.json").write_bytes(FOLDER["tokenizer.json"])
    publish(hub, "who/what", FOLDER)
    files = resolve_model("who/what", tmp_path, HubAccess(hub.url))
    assert {path.name: path.read_bytes() for path in files.path.iterdir()} == FOLDER
    assert hub.ranges("/who/what/resolve/main/tokenizer.json") == []


def test_a_failed_download_leaves_no_empty_folder(hub: Files, tmp_path: Path) -> None:
    def interrupted(name: str, *_: object) -> None:
        raise KeyboardInterrupt

    root = tmp_path / "models"
    with pytest.raises(ModelError):
        resolve_model("who/what", tmp_path, HubAccess(hub.url))
    assert not (root / "who--what.partial").exists()
    publish(hub, "who/what", FOLDER)
    hub.cut_after["/who/what/resolve/main/config.json"] = [0] * 5
    with pytest.raises(ModelError):
        resolve_model("who/what", tmp_path, HubAccess(hub.url))
    assert not (root / "who--what.partial").exists()
    with pytest.raises(KeyboardInterrupt):
        resolve_model("who/what", tmp_path, HubAccess(hub.url), interrupted)
    (begun,) = (root / "who--what.partial").iterdir()  # the second attempt resumes the first
    assert begun.stat().st_size > 0


def test_a_set_of_files_of_a_repository_is_fetched(hub: Files, tmp_path: Path) -> None:
    names = [f"b-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    publish(hub, "who/what", {name: name.encode() for name in ("a.gguf", *names)})
    files = resolve_model(f"who/what/{names[0]}", tmp_path, HubAccess(hub.url))
    assert files.path.name == names[0]
    assert sorted(path.name for path in files.path.parent.glob("*.gguf")) == names
    publish(hub, "who/less", {name: name.encode() for name in names[:2]})
    with pytest.raises(ModelError, match=r"b-00003-of-00003\.gguf not found"):
        resolve_model(f"who/less/{names[0]}", tmp_path, HubAccess(hub.url))


def test_one_file_of_a_repository_is_fetched(hub: Files, tmp_path: Path) -> None:
    publish(hub, "who/what", {"a.gguf": b"GGUF a", "b.gguf": b"GGUF b"})
    files = resolve_model("who/what/b.gguf", tmp_path, HubAccess(hub.url))
    assert files.kind == "gguf"
    assert files.path.read_bytes() == b"GGUF b"
    assert not list(tmp_path.rglob("a.gguf"))


@pytest.mark.parametrize("spoiled", ["config.json", "model.safetensors"])
def test_content_with_a_wrong_hash_is_refused(hub: Files, tmp_path: Path, spoiled: str) -> None:
    publish(hub, "who/what", FOLDER)
    hub.add(f"/who/what/resolve/main/{spoiled}", b"x" * len(FOLDER[spoiled]))
    with pytest.raises(ModelError, match=f"{spoiled}: the sha.* is wrong"):
        resolve_model("who/what", tmp_path, HubAccess(hub.url))
    publish(hub, "who/what", FOLDER)
    files = resolve_model("who/what", tmp_path, HubAccess(hub.url))
    assert (files.path / spoiled).read_bytes() == FOLDER[spoiled]


def test_names_outside_the_folder_are_not_downloaded(hub: Files, tmp_path: Path) -> None:
    publish(hub, "who/what", {**FOLDER, "../config.json": b"1", "a/model.safetensors": b"2"})
    files = resolve_model("who/what", tmp_path, HubAccess(hub.url))
    assert {path.name for path in files.path.iterdir()} == set(FOLDER)
    assert not (files.path.parent / "config.json").exists()


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        (None, "HTTP 404.*HF_TOKEN"),
        (b"{", "not a listing"),
        (b"[]", "config.json and .* not found"),
    ],
)
def test_a_hub_without_the_model_is_named(
    hub: Files, tmp_path: Path, listing: bytes | None, message: str
) -> None:
    if listing is not None:
        hub.add("/api/models/who/what/tree/main", listing)
    with pytest.raises(ModelError, match=message):
        resolve_model("who/what", tmp_path, HubAccess(hub.url))


def test_a_hub_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with serving(Files()) as gone:
        url = gone.url
    with pytest.raises(ModelError, match=f"{url} does not answer, who/what"):
        resolve_model("who/what", tmp_path, HubAccess(url))


def test_offline_sends_no_request(hub: Files, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="who/what has not been downloaded"):
        resolve_model("who/what", tmp_path, HubAccess(hub.url, offline=True))
    assert hub.requests == []


@pytest.mark.parametrize(
    ("sharded", "last"),
    [
        (False, "config.json"),
        (False, "tokenizer.json"),
        (False, "model.safetensors"),
        (False, "1_Pooling/config.json"),
        (True, "2_Dense/model.safetensors"),
        (True, "model-00002-of-00002.safetensors"),
    ],
)
def test_a_snapshot_in_the_hubs_own_cache_is_used_when_complete(
    tmp_path: Path, sharded: bool, last: str
) -> None:
    root = tmp_path / "hub" / "models--who--what"
    snapshot = root / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("abc123")
    access = HubAccess(cache=tmp_path / "hub", offline=True)
    files = {**SENTENCE, **(SMALL | SHARDED if sharded else FOLDER)}
    for name, data in files.items():
        (snapshot / name).parent.mkdir(exist_ok=True)
        (snapshot / name).write_bytes(data)
    (snapshot / last).unlink()
    with pytest.raises(ModelError, match="has not been downloaded"):
        resolve_model("who/what", tmp_path / "home", access)
    (snapshot / last).write_bytes(files[last])
    assert resolve_model("who/what", tmp_path / "home", access).path == snapshot


@pytest.mark.parametrize("right", [True, False])
def test_a_catalogue_file_must_have_the_catalogues_hash(
    hub: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    data = b"GGUF" + bytes(100)
    entry = CatalogueEntry(
        name="tiny",
        description="",
        licence="",
        hub_id="who/what",
        revision="abc",
        file="t.gguf",
        sha256=hashlib.sha256(data if right else b"other").hexdigest(),
    )
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    publish(hub, "who/what", {"t.gguf": data}, revision="abc")
    if not right:
        with pytest.raises(ModelError, match="sha256 of the content is wrong"):
            resolve_model("Tiny", tmp_path, HubAccess(hub.url))
        assert not sources.is_fetched(entry, tmp_path)
        return
    files = resolve_model("Tiny", tmp_path, HubAccess(hub.url))
    assert files.model_id == "tiny"
    assert files.path.read_bytes() == data
    assert sources.is_fetched(entry, tmp_path)


def test_every_catalogue_entry_can_be_checked() -> None:
    for name, entry in catalogue.CATALOGUE.items():
        assert name == entry.name == name.lower()
        assert (entry.file is None) == (entry.sha256 is None)
        assert entry.sha256 is None or len(entry.sha256) == 64
    default = CATALOGUE[DEFAULT_MODEL]
    assert default.pypi is not None
    assert default.pypi.sha256 == default.sha256


def test_a_fingerprint_depends_on_the_content_not_the_path(tmp_path: Path) -> None:
    data = bytearray(bytes(range(256)) * 4096)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "m.gguf").write_bytes(data)
    (tmp_path / "m.gguf").write_bytes(data)
    first = fingerprint(ModelFiles("x", "gguf", tmp_path / "m.gguf"))
    assert fingerprint(ModelFiles("y", "gguf", tmp_path / "a" / "m.gguf")) == first
    data[100] ^= 1
    (tmp_path / "m.gguf").write_bytes(data)
    assert fingerprint(ModelFiles("x", "gguf", tmp_path / "m.gguf")) != first


def test_a_fingerprint_depends_on_files_in_subfolders(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    dense = tmp_path / "2_Dense" / "config.json"
    dense.parent.mkdir()
    seen = set()
    for content in ('{"in_features": 1}', '{"in_features": 2}'):
        dense.write_text(content)
        seen.add(fingerprint(ModelFiles("x", "folder", tmp_path)))
    dense.rename(tmp_path / "2_Dense" / "other.json")
    seen.add(fingerprint(ModelFiles("x", "folder", tmp_path)))
    assert len(seen) == 3


def test_the_mmproj_file_beside_a_gguf_is_found(tmp_path: Path) -> None:
    for name in ("m-q4_k_m.gguf", "mmproj-m-f16.gguf"):
        (tmp_path / name).write_bytes(name.encode())
    for name in (tmp_path, tmp_path / "m-q4_k_m.gguf"):
        files = resolve_model(str(name), tmp_path)
        assert files.path.name == "m-q4_k_m.gguf"
        assert files.mmproj == tmp_path / "mmproj-m-f16.gguf"
    assert resolve_model(str(tmp_path), tmp_path, mmproj="off").mmproj is None


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf"), "mmproj-F16.gguf"),
        (("a.mmproj-Q8_0.gguf", "a.mmproj-bf16.gguf"), "a.mmproj-bf16.gguf"),
        (("m-mmproj.gguf",), "m-mmproj.gguf"),
        (("mmproj-a-f16.gguf", "mmproj-b-f16.gguf"), None),
        (("a.gguf", "mmproj.bin"), None),
    ],
)
def test_the_mmproj_file_is_chosen_by_type_only(names: tuple[str, ...], chosen: str | None) -> None:
    assert choose_mmproj(names) == chosen


def test_a_named_mmproj_file_replaces_the_one_beside_the_model(tmp_path: Path) -> None:
    for name in ("m.gguf", "mmproj-m.gguf", "other.gguf"):
        (tmp_path / name).write_bytes(name.encode())
    model, other = str(tmp_path / "m.gguf"), tmp_path / "other.gguf"
    assert resolve_model(model, tmp_path, mmproj=str(other)).mmproj == other
    with pytest.raises(ModelError, match=r"mmproj: .*no-such: no such file"):
        resolve_model(model, tmp_path, mmproj=str(tmp_path / "no-such"))


def test_the_mmproj_file_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    for name in ("m.gguf", "mmproj-m.gguf"):
        (tmp_path / name).write_bytes(name.encode())
    files = resolve_model(str(tmp_path), tmp_path)
    assert fingerprint(files) != fingerprint(ModelFiles("m", "gguf", files.path))


def test_the_mmproj_file_of_a_repository_is_downloaded_with_the_model(
    hub: Files, tmp_path: Path
) -> None:
    names = ("m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf")
    publish(hub, "who/what", {name: name.encode() for name in names})
    files = resolve_model("who/what/m-Q8_0.gguf", tmp_path, HubAccess(hub.url))
    assert files.mmproj is not None
    assert files.mmproj.read_bytes() == b"mmproj-F16.gguf"
    assert sorted(path.name for path in files.path.parent.glob("*.gguf")) == [names[1], names[2]]
    again = resolve_model("who/what/m-Q8_0.gguf", tmp_path, HubAccess(offline=True))
    assert again.mmproj == files.mmproj


def test_the_processor_files_of_a_folder_are_downloaded(hub: Files, tmp_path: Path) -> None:
    names = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
    publish(hub, "who/what", FOLDER | dict.fromkeys(names, b"{}"))
    files = resolve_model("who/what", tmp_path, HubAccess(hub.url))
    assert all((files.path / name).exists() for name in names)
