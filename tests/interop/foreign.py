"""Models of every family as transformers makes them, small and odd, with weights of which none is zero."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from interop.vocabularies import MAKE
from torch import nn

from regard.interop.tokens import read_tokenizers

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")
ARCHITECTURES: dict[str, str] = {
    "BertForPreTraining": "bert",
    **{f"BertFor{head}": "bert" for head in HEADS},
    "BertModel": "bert",
    **{f"DistilBertFor{head}": "distilbert" for head in HEADS},
    "DistilBertModel": "distilbert",
    **{f"RobertaFor{head}": "roberta" for head in HEADS},
    "RobertaModel": "roberta",
    "OpenAIGPTLMHeadModel": "openai-gpt",
    "GPT2LMHeadModel": "gpt2",
    "MarianMTModel": "marian",
    "BartForConditionalGeneration": "bart",
}


def make(architecture: str, seed: int = 0, **settings: Any) -> Any:
    """A model of random shape; the same seed gives the same."""
    dice = random.Random(f"{architecture} {seed}")
    config = CONFIGS[ARCHITECTURES[architecture]](dice, **settings)
    if "Classification" in architecture:
        labels = dice.randint(1, 5)
        config.id2label = {i: f"label {i}" for i in range(labels)}
        config.label2id = {name: i for i, name in config.id2label.items()}
    return fill(getattr(transformers, architecture)(config), seed)


def save(architecture: str, folder: Path, seed: int = 0, **settings: Any) -> Any:
    model = make(architecture, seed, **settings)
    model.save_pretrained(folder)
    return model


def speak(architecture: str, folder: Path, seed: int = 0, **settings: Any) -> Any:
    """The same with a vocabulary of its family, so that it can be asked in words."""
    family = ARCHITECTURES[architecture]
    folder.mkdir(parents=True)
    MAKE[family](folder)
    held = read_tokenizers(folder, {"model_type": family})
    assert held is not None
    marks, sizes = held.target.marks, {key: 96 for key in CONTEXTS if hasattr(CONFIGS[family](random.Random(0)), key)}
    ids: dict[str, Any] = {"pad_token_id": marks.pad, "eos_token_id": marks.end, "bos_token_id": marks.begin}
    ids["forced_eos_token_id"] = None
    if family == "marian":
        ids |= {"decoder_start_token_id": marks.pad, "share_encoder_decoder_embeddings": True}
        ids |= {"decoder_vocab_size": held.target.size}
    if family in ("bert", "roberta"):
        ids["type_vocab_size"] = 2 if family == "bert" else 1
    if family == "bart":
        ids |= {"bos_token_id": marks.before[0], "decoder_start_token_id": marks.end}
        ids |= {"forced_bos_token_id": marks.before[0]}
    return save(architecture, folder, seed, vocab_size=held.target.size, **sizes, **ids, **settings)


CONTEXTS = ("max_position_embeddings", "n_positions")


def fill(model: nn.Module, seed: int) -> nn.Module:
    """Fresh biases are zero and fresh gains one: mistakes in them would not show."""
    torch.manual_seed(seed)
    waves = isinstance(model, transformers.MarianMTModel)
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if not (waves and "embed_positions" in name):
                nn.init.normal_(tensor, std=0.4)
        for idle, used in SHADOWS:  # where no matrices are tied, some that nobody reads are still there
            shadow, real = _find(model, idle), _find(model, used)
            if shadow is not None and real is not None:
                shadow.copy_(real)
    return model.eval()


SHADOWS = (
    ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    ("lm_head.bias", "lm_head.decoder.bias"),
    ("model.shared.weight", "model.decoder.embed_tokens.weight"),
)


def _find(model: nn.Module, name: str) -> torch.Tensor | None:
    return model.state_dict(keep_vars=True).get(name)


# ---- shapes


def _width(dice: random.Random) -> tuple[int, int]:
    """Width and heads, often odd."""
    heads = dice.choice((1, 1, 2, 3, 5))
    return heads * dice.randint(1, 7), heads


def _bert(dice: random.Random, kind: Any = transformers.BertConfig, **settings: Any) -> Any:
    dim, heads = _width(dice)
    values = {
        "vocab_size": dice.randint(7, 60), "hidden_size": dim, "num_attention_heads": heads,
        "num_hidden_layers": dice.randint(1, 3), "intermediate_size": dice.randint(1, 40),
        "max_position_embeddings": dice.randint(12, 40), "type_vocab_size": dice.randint(1, 3),
        "hidden_act": dice.choice(("gelu", "gelu_new", "relu", "silu")), "layer_norm_eps": dice.choice((1e-12, 1e-5)),
        "tie_word_embeddings": dice.random() < 0.7,
    }  # fmt: skip
    return kind(**{**values, **settings})


def _roberta(dice: random.Random, **settings: Any) -> Any:
    chosen = {"hidden_act": "gelu", "pad_token_id": dice.randint(0, 3), **settings}
    return _bert(dice, transformers.RobertaConfig, **chosen)


def _distilbert(dice: random.Random, **settings: Any) -> Any:
    dim, heads = _width(dice)
    values = {
        "vocab_size": dice.randint(7, 60), "dim": dim, "n_heads": heads, "n_layers": dice.randint(1, 3),
        "hidden_dim": dice.randint(1, 40), "max_position_embeddings": dice.randint(12, 40),
        "activation": dice.choice(("gelu", "relu")), "tie_word_embeddings": dice.random() < 0.7,
    }  # fmt: skip
    return transformers.DistilBertConfig(**{**values, **settings})


def _gpt2(dice: random.Random, **settings: Any) -> Any:
    dim, heads = _width(dice)
    values = {
        "vocab_size": dice.randint(7, 60), "n_embd": dim, "n_head": heads, "n_layer": dice.randint(1, 3),
        "n_inner": dice.choice((None, dice.randint(1, 40))), "n_positions": dice.randint(12, 40),
        "activation_function": dice.choice(("gelu_new", "gelu", "relu", "silu")),
        "tie_word_embeddings": dice.random() < 0.5, "bos_token_id": 1, "eos_token_id": 1,
    }  # fmt: skip
    return transformers.GPT2Config(**{**values, **settings})


def _gpt1(dice: random.Random, **settings: Any) -> Any:
    dim, heads = _width(dice)
    values = {
        "vocab_size": dice.randint(7, 60), "n_embd": dim, "n_head": heads, "n_layer": dice.randint(1, 3),
        "n_positions": dice.randint(12, 40), "afn": dice.choice(("gelu", "relu", "silu")),
        "tie_word_embeddings": dice.random() < 0.5,
    }  # fmt: skip
    return transformers.OpenAIGPTConfig(**{**values, **settings})


def _bart(dice: random.Random, kind: Any = transformers.BartConfig, **settings: Any) -> Any:
    dim, heads = _width(dice)
    hidden = dice.randint(1, 40)
    values = {
        "vocab_size": dice.randint(7, 60), "d_model": dim,
        "encoder_attention_heads": heads, "decoder_attention_heads": heads,
        "encoder_layers": dice.randint(1, 3), "decoder_layers": dice.randint(1, 3),
        "encoder_ffn_dim": hidden, "decoder_ffn_dim": hidden, "max_position_embeddings": dice.randint(26, 40),
        "activation_function": dice.choice(("gelu", "gelu_new", "relu", "swish")),
        "scale_embedding": dice.random() < 0.5, "tie_word_embeddings": dice.random() < 0.7,
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
        "forced_eos_token_id": 2,
    }  # fmt: skip
    return kind(**{**values, **settings})


def _marian(dice: random.Random, **settings: Any) -> Any:
    shared = dice.random() < 0.5
    sizes = {} if shared else {"decoder_vocab_size": dice.randint(7, 60), "share_encoder_decoder_embeddings": False}
    return _bart(dice, transformers.MarianConfig, **{**sizes, **settings})


CONFIGS: dict[str, Callable[..., Any]] = {
    "bert": _bert,
    "distilbert": _distilbert,
    "roberta": _roberta,
    "openai-gpt": _gpt1,
    "gpt2": _gpt2,
    "marian": _marian,
    "bart": _bart,
}
