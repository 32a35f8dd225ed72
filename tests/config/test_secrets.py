"""Nobody is shown a secret; nobody is kept from seeing a harmless setting."""

from __future__ import annotations

import pytest

from supervisor.config import is_secret, mask, mask_command


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
