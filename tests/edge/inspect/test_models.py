"""What a model's folder tells before a load: shards against index and headers, config, tokenizer, hub's copies."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from supervisor.edge.inspect.look import look
from supervisor.preflight import ModelFacts, ModelKind
from tests.edge.inspect.places import model, request, shard

TWO = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def seen(path: Path | str, **more: object) -> ModelFacts:
    (found,) = look(request(str(path), **more)).models
    return found


def test_a_complete_model_has_nothing_wrong(tmp_path: Path) -> None:
    found = seen(model(tmp_path / "m", *TWO))
    assert (found.kind, found.missing, found.unreadable, found.config_problem) == (ModelKind.FOLDER, (), (), "")
    assert [(file.name, file.problem) for file in found.files] == [(name, "") for name in TWO]
    assert found.index_bytes == 16
    assert found.tokenizer is True
    assert found.config is not None
    assert found.config.numbers["max_position_embeddings"] == 4096


def test_a_shard_that_the_index_names_is_missing(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", *TWO)
    (folder / TWO[1]).unlink()
    assert seen(folder).missing == (TWO[1],)


def test_a_shard_beside_the_index_is_not_loaded(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", *TWO)
    shard(folder / "consolidated.safetensors", cut=3)
    assert [file.name for file in seen(folder).files] == list(TWO)


def test_a_shard_that_was_cut_off(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", *TWO)
    whole = (folder / TWO[0]).stat().st_size
    shard(folder / TWO[0], cut=3)
    assert seen(folder).files[0].problem == f"{whole - 3} bytes long in place of {whole}"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "0 bytes long, which is no file of weights"),
        (b"\x00" * 100, "its header is damaged"),
        (b"\xff" * 100, "its header claims 18446744073709551615 bytes, the file has 100"),
        (b"\x02\0\0\0\0\0\0\0[]", "its header is damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "a pointer of git-lfs in place of the file"),
    ],
)
def test_a_file_that_is_no_file_of_weights(tmp_path: Path, data: bytes, problem: str) -> None:
    folder = model(tmp_path / "m", "model.safetensors")
    (folder / "model.safetensors").write_bytes(data)
    assert seen(folder).files[0].problem.startswith(problem)


@pytest.mark.parametrize(
    "offsets", ["[0, 1e999]", "[8]", "[0, 4, 8]", "[8, 0]", "[-8, 0]", '["x", 8]', "[null, 8]", f"[0, {'9' * 5000}]"]
)
def test_offsets_of_a_tensor_that_are_none(tmp_path: Path, offsets: str) -> None:
    header = f'{{"w": {{"dtype": "F32", "data_offsets": {offsets}}}}}'.encode()
    folder = model(tmp_path / "m", "model.safetensors")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert seen(folder).files[0].problem == "its header is damaged"


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999", "1" + "0" * 400])
def test_numbers_that_no_model_has_are_left_out(tmp_path: Path, number: str) -> None:
    folder = model(tmp_path / "m", *TWO)
    rope = f'{{"factor": {number}}}'
    (folder / "config.json").write_text(f'{{"hidden_size": {number}, "num_layers": 2, "rope_scaling": {rope}}}')
    index = f'{{"weight_map": {{"w": "{TWO[0]}"}}, "metadata": {{"total_size": {number}}}}}'
    (folder / "model.safetensors.index.json").write_text(index)
    found = seen(folder)
    assert found.config is not None
    assert found.config.rope is not None
    assert (found.config.numbers, found.config.rope.factor, found.index_bytes) == ({"num_layers": 2.0}, 1.0, None)


def test_a_shards_name_that_no_file_can_have(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", *TWO)
    (folder / "sub").mkdir()
    names = {"a": "sub", "b": "a\0b", "c": "x" * 300, "d": TWO[0]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert {file.name: bool(file.problem) for file in seen(folder).files} == {
        "sub": True,
        "a\0b": True,
        "x" * 300: True,
        TWO[0]: False,
    }


def test_wide_numbers_are_counted(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", "model.safetensors")
    shard(folder / "model.safetensors", dtype="F32", values=16)
    assert seen(folder).files[0].wide_bytes == 16


@pytest.mark.parametrize("text", ["{", "[]", "\xff", "[" * 100_000])
def test_a_broken_config(tmp_path: Path, text: str) -> None:
    folder = model(tmp_path / "m", "model.safetensors")
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    found = seen(folder)
    assert found.config is None
    assert found.config_problem.startswith("config.json: ")


@pytest.mark.parametrize("text", ["{}", "{", '{"weight_map": []}'])
def test_a_broken_index(tmp_path: Path, text: str) -> None:
    folder = model(tmp_path / "m", *TWO)
    (folder / "model.safetensors.index.json").write_text(text)
    found = seen(folder)
    assert found.index_problem.startswith("model.safetensors.index.json: ")
    assert len(found.files) == 2  # all that is there


def test_the_text_models_part_of_a_config(tmp_path: Path) -> None:
    text = {
        "model_type": "kimi_k2",
        "max_position_embeddings": 262144,
        "rope_scaling": {"factor": 64, "rope_type": "yarn"},
    }
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    whole = {
        "architectures": ["Kimi"],
        "text_config": text | {"quantization_config": quantization},
        "vision_config": {},
    }
    config = seen(model(tmp_path / "m", "model.safetensors", config=whole)).config
    assert config is not None
    assert (config.architectures, config.model_type) == (("Kimi",), "kimi_k2")
    assert (config.quantization, config.quantization_block) == ("fp8", (128, 128))
    assert config.rope is not None
    assert (config.rope.factor, config.rope.original, config.rope.kind) == (64.0, False, "yarn")


def test_a_config_of_odd_types_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    odd = {"architectures": "x", "rope_scaling": "y", "quantization_config": {"weight_block_size": [1.5]}, "a": True}
    config = seen(model(tmp_path / "m", "model.safetensors", config=odd)).config
    assert config is not None
    assert (config.architectures, config.rope, config.quantization_block, config.numbers) == ((), None, (), {})


def test_a_model_without_tokenizer(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", "model.safetensors")
    (folder / "tokenizer.json").unlink()
    assert seen(folder).tokenizer is False
    (folder / "tokenization_own.py").write_text("")
    assert seen(folder).tokenizer is True


def test_a_tokenizer_of_its_own_is_looked_for_there(tmp_path: Path) -> None:
    folder, other = model(tmp_path / "m", "model.safetensors"), tmp_path / "t"
    other.mkdir()
    both = look(request(models={"model": str(folder), "tokenizer": str(other)})).models
    assert [found.tokenizer for found in both] == [None, False]


def test_partial_files_and_other_formats_are_noticed(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    for name in ("a.safetensors.incomplete", "model.gguf"):
        (folder / name).write_text("")
    found = seen(folder)
    assert found.unfinished == ("a.safetensors.incomplete",)
    assert found.other_formats


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/no/such/model", ModelKind.MISSING),
        ("./model", ModelKind.MISSING),
        ("owner/name/too/deep", ModelKind.MISSING),
        ("moonshotai/Kimi-K2.5", ModelKind.HUB),
        ("gpt2", ModelKind.HUB),
        ("s3://bucket/model", ModelKind.REMOTE),
        ("/bin/sh", ModelKind.FILE),
    ],
)
def test_what_a_path_names(tmp_path: Path, path: str, kind: ModelKind) -> None:
    assert seen(path, directory=str(tmp_path)).kind is kind


def test_a_relative_path_counts_from_the_servers_directory(tmp_path: Path) -> None:
    model(tmp_path / "models" / "kimi", "model.safetensors")
    assert seen("models/kimi", directory=str(tmp_path)).kind is ModelKind.FOLDER


def test_a_hubs_copy_is_found_where_the_hub_puts_it(tmp_path: Path) -> None:
    place = tmp_path / "hub" / "models--owner--name"
    model(place / "snapshots" / "abc", "model.safetensors")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    found = seen("owner/name", environment={"HF_HOME": str(tmp_path)})
    assert (found.kind, found.folder) == (ModelKind.HUB, str(place / "snapshots" / "abc"))
    assert found.config is not None
    without = seen("owner/name", environment={"HF_HUB_CACHE": str(tmp_path / "none")})
    assert (without.folder, without.cache, without.files) == ("", str(tmp_path / "none"), ())
    assert without.cache_free_bytes is not None


def test_a_large_index_is_read(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", *TWO)
    index = {"weight_map": {f"model.layers.{at}.w": TWO[at % 2] for at in range(50_000)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert len(seen(folder).files) == 2
