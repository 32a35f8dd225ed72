"""Nobody is shown a secret; nobody is kept from seeing a harmless setting."""

from __future__ import annotations

import time

import pytest

from supervisor.config import is_secret, mask, mask_command, mask_text


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "PASSWORD",
        "db_passwd",
        "--api-key",
        "--admin-api-key",
        "--ssl-keyfile-password",
        "CREDENTIALS",
        "token",
        "WANDB_API_KEY",
        "TOKENIZER_API_KEY",
    ],
)
def test_secrets_are_recognised(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "HF_HOME",
        "CUDA_VISIBLE_DEVICES",
        "--tokenizer-path",
        "TOKENIZERS_PARALLELISM",
        "--max-total-tokens",
        "PATH",
        "--speculative-num-draft-tokens",
        "--ssl-keyfile",
        "--port",
        "NCCL_DEBUG",
        "--chunked-prefill-size",
    ],
)
def test_harmless_names_stay_visible(name: str) -> None:
    assert not is_secret(name)


def test_values_of_an_environment_are_hidden() -> None:
    shown = mask({"HF_TOKEN": "hf_abc", "HF_HOME": "/models", "EMPTY_KEY": ""})
    assert shown == {"HF_TOKEN": "***", "HF_HOME": "/models", "EMPTY_KEY": ""}


def test_values_in_a_command_are_hidden() -> None:
    command = ["env", "HF_TOKEN=abc", "python", "--api-key", "abc", "--admin-api-key=abc", "--port", "1", "--api-key"]
    shown = mask_command(command)
    assert shown == (
        "env",
        "HF_TOKEN=***",
        "python",
        "--api-key",
        "***",
        "--admin-api-key=***",
        "--port",
        "1",
        "--api-key",
    )
    assert "abc" not in " ".join(shown)


def test_json_in_an_argument_is_no_assignment() -> None:
    override = '{"max_position_embeddings": 4096, "note": "a=b"}'
    assert mask_command(["--json-model-override-args", override])[1] == override


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ServerArgs(model='/m', api_key='S3CRET', tp=1)", "ServerArgs(model='/m', api_key='***', tp=1)"),
        ("ServerArgs(admin_api_key='S3CR", "ServerArgs(admin_api_key='***"),  # cut
        ("python -m engine --api-key S3CRET --port 1", "python -m engine --api-key *** --port 1"),
        ("['--api-key', 'S3CRET', '--port']", "['--api-key', '***', '--port']"),
        ("--admin-api-key=S3CRET", "--admin-api-key=***"),
        ("Authorization: Bearer S3CRET-x", "Authorization: Bearer ***"),
        ("{'authorization': 'Bearer S3CRET'}", "{'authorization': '***'}"),
        ("Authorization: ApiKey S3CRET", "Authorization: *** ***"),
        ('{"api_key": "S3CRET"}', '{"api_key": "***"}'),
        (r"{\"api_key\": \"S3CRET\"}", r'{\"api_key\": \"***"}'),
        ("x-api-key: S3CRET", "x-api-key: ***"),
        ('"token": "S3CRET two", x', '"token": "***", x'),
        ("HF_TOKEN=S3CRET PASSWORD: S3CRET", "HF_TOKEN=*** PASSWORD: ***"),
        ("HF_TOKEN=S3CRET python", "HF_TOKEN=*** python"),
        ("GET /v1?token=S3CRET&x=1", "GET /v1?token=***&x=1"),
        ("https://user:S3CRET@host/x", "https://user:***@host/x"),
        ("cannot clone https://hf_S3CRET0123456789@host/x", "cannot clone https://***@host/x"),
        ("message='api_key=S3CRET'", "message='api_key=***'"),
    ],
)  # fmt: skip
def test_secrets_in_text_are_hidden(text: str, shown: str) -> None:
    assert mask_text(text) == shown
    assert mask_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Decode batch. #running-req: 1, #token: 512, token usage: 0.01, cuda graph: True",
        "KeyError: 'model.layers.0.mlp.gate_proj.weight'",
        "unexpected keyword argument 'x'; missing key: 'layers.0'",
        "max_total_num_tokens=124000, chunked_prefill_size=8192, tokenizer_path='/models/m', api_key=None",
        "--tokenizer-path /models/m --max-total-tokens 4096",
        "init_method=tcp://127.0.0.1:29500 ssh://git@host http://[::1]:30000/health",
        "bearer token required",
        "",
    ],
)
def test_the_cause_of_a_failure_stays_visible(text: str) -> None:
    assert mask_text(text) == text


@pytest.mark.parametrize("piece", ["key", "key=", "key='", "a-", "://", "://a:", "--key ", "bearer ", "key=a ", '\\"'])
def test_hostile_text_is_masked_in_linear_time(piece: str) -> None:
    begun = time.process_time()
    mask_text("key " + piece * (64 * 1024 // len(piece)))
    assert time.process_time() - begun < 1.0


def test_secrets_within_words_and_values_are_hidden() -> None:
    command = ["run", "--hdr", "Authorization: Bearer S3CRET", "--json", '{"api_key": "S3CRET"}', "db://u:S3CRET@h"]
    assert "S3CRET" not in " ".join(mask_command(command))
    assert mask({"DATABASE_URL": "postgres://u:S3CRET@h/db"}) == {"DATABASE_URL": "postgres://u:***@h/db"}
