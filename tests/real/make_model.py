"""Writes a tiny Llama with random weights into a folder, complete enough for SGLang to load it offline."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "a server listens on a port and answers requests until it is told to stop",
    "restart the worker when its health probe fails three times in a row",
    "tokens per second, queue depth, memory pressure and cache hit rate",
    "0 1 2 3 4 5 6 7 8 9 10 42 100 1000 hello world",
] * 50
SPECIAL = ["<s>", "</s>", "<pad>"]
VOCABULARY = 1024
HIDDEN = 64
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD = HIDDEN // HEADS
CONTEXT = 2048

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "model_max_length": CONTEXT,
    "clean_up_tokenization_spaces": False,
    "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: ",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2})
    write_weights(folder)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG)


def write_weights(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Any:
        return (torch.randn(*shape, generator=generator) * 0.02).to(torch.bfloat16)

    def ones() -> Any:
        return torch.ones(HIDDEN, dtype=torch.bfloat16)

    save_file(tensors(noise, ones), folder / "model.safetensors", metadata={"format": "pt"})


def tensors(noise: Callable[..., Any], ones: Callable[[], Any]) -> dict[str, Any]:
    weights = {"model.embed_tokens.weight": noise(VOCABULARY, HIDDEN), "lm_head.weight": noise(VOCABULARY, HIDDEN)}
    weights["model.norm.weight"] = ones()
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": ones(),
            prefix + "post_attention_layernorm.weight": ones(),
            prefix + "self_attn.q_proj.weight": noise(HEADS * HEAD, HIDDEN),
            prefix + "self_attn.k_proj.weight": noise(KV_HEADS * HEAD, HIDDEN),
            prefix + "self_attn.v_proj.weight": noise(KV_HEADS * HEAD, HIDDEN),
            prefix + "self_attn.o_proj.weight": noise(HIDDEN, HEADS * HEAD),
            prefix + "mlp.gate_proj.weight": noise(2 * HIDDEN, HIDDEN),
            prefix + "mlp.up_proj.weight": noise(2 * HIDDEN, HIDDEN),
            prefix + "mlp.down_proj.weight": noise(HIDDEN, 2 * HIDDEN),
        }
    return weights


if __name__ == "__main__":
    main()
