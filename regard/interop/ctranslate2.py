"""Export to CTranslate2, a C++ engine for Transformers that write: `ctranslate2.Translator` and `.Generator` load it.

    Transformer   words of a source → words of a target      the engine puts the marks around a source by itself
    GPT           words of a prompt → those that follow

Words are strings, as the vocabulary spells them. The engine has one computation with a few switches, so the weights are
laid into its own specification, name by name, in float32. Whoever wants int8 asks for it when loading:
`Translator(folder, compute_type="int8")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.block import Block
from regard.core.norm import LayerNorm
from regard.data.batch import pad
from regard.data.tokenizer import Tokenizer, Tokenizers
from regard.errors import ConfigError
from regard.interop.engine import WAVES, Check, Comparison, answer, describe, lengths, needed, new_folder, on_cpu
from regard.interop.engine import random_words as words
from regard.models.gpt import GPT
from regard.models.transformer import Transformer
from regard.pipeline import Pipeline

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}


def export_ctranslate2(pipeline: Pipeline, folder: str | Path) -> Check:
    """Writes a model, vocabularies and `regard.json` into a new folder, if ctranslate2 gives what the model gives."""
    engine = needed("ctranslate2", "ctranslate2")
    model, tokenizers = on_cpu(_able(pipeline.model)), pipeline.tokenizers
    spec = _translator(model, tokenizers) if isinstance(model, Transformer) else _generator(model, tokenizers.target)
    with new_folder(Path(folder)) as beside:
        spec.validate()
        spec.optimize()  # matrices that are one are written once
        spec.save(str(beside))
        marks, name = tokenizers.target.marks, tokenizers.target.inner.id_to_token
        describe(
            beside, pipeline, marks=marks.names(name),
            target_prefix=[name(mark) for mark in marks.opening],
            suppress_sequences=[[name(mark)] for mark in marks.unsayable],
        )  # fmt: skip
        how = {"device": "cpu", "compute_type": "float32", "intra_threads": torch.get_num_threads()}
        found = Comparison()
        if isinstance(model, Transformer):
            _same_translations(found, model, tokenizers, engine.Translator(str(beside), **how))
        else:
            _same_continuations(found, model, tokenizers.target, engine.Generator(str(beside), **how))
        return found.check(f"ctranslate2 {engine.__version__}")


# ---- what cannot be said there


def _able(model: nn.Module) -> Transformer | GPT:
    """The model, unless one of its settings stands in the way."""
    if isinstance(model, GPT):
        if model.config.labels is not None:
            raise ConfigError("labels: a CTranslate2 generator writes and tells no labels; export it to onnx")
        return model
    if not isinstance(model, Transformer):
        raise ConfigError(
            f"CTranslate2 has no place for a {type(model).__name__} of ours; export a transformer or a gpt, "
            "or a bert to onnx"
        )
    for setting, only in (("score", "scaled_dot"), ("normalise", "layer")):
        if (value := getattr(model.config, setting)) != only:
            raise ConfigError(f'{setting}: CTranslate2 knows "{only}" and not "{value}"; export it to onnx')
    return model


# ---- the specification


def _translator(model: Transformer, tokenizers: Tokenizers) -> Any:
    spec = _specs().TransformerSpec.from_config(
        (len(model.encoder), len(model.decoder)), model.config.heads,
        pre_norm=model.config.norm == "pre", activation=_activation(model.config.activation),
        layernorm_embedding=model.config.embedding_norm,
    )  # fmt: skip
    _stack(spec.encoder, model.encoder, model.encoder_norm)
    _stack(spec.decoder, model.decoder, model.decoder_norm)
    spec.encoder.embeddings[0].weight = _numbers(model.source_words.weight)
    spec.decoder.embeddings.weight = _numbers(model.words.weight)
    sides = (spec.encoder, model.source_positions, model.source_norm), (spec.decoder, model.positions, model.norm)
    for side, positions, norm in sides:
        side.scale_embeddings = model.config.dim**0.5 if model.config.scaled else 1.0
        side.position_encodings.encodings = _numbers(positions(0, model.longest or WAVES))
        if model.config.embedding_norm:
            _norm(side.layernorm_embedding, norm)
    _linear(spec.decoder.projection, model.head)
    spec.register_source_vocabulary(_vocabulary(tokenizers.source, model.source_words))
    spec.register_target_vocabulary(_vocabulary(tokenizers.target, model.words))
    _marks(spec.config, tokenizers.target)
    _frame(spec.config, tokenizers.source)
    spec.config.layer_norm_epsilon = _epsilon(model)
    return spec


def _generator(model: GPT, tokenizer: Tokenizer) -> Any:
    spec = _specs().TransformerDecoderModelSpec.from_config(
        len(model.blocks), model.config.heads,
        pre_norm=model.config.norm == "pre", activation=_activation(model.config.activation),
    )  # fmt: skip
    _stack(spec.decoder, model.blocks, model.norm)
    spec.decoder.embeddings.weight = _numbers(model.words.weight)
    spec.decoder.scale_embeddings = False
    spec.decoder.position_encodings.encodings = _numbers(model.positions(0, model.longest))
    _linear(spec.decoder.projection, model.head)
    spec.register_vocabulary(_vocabulary(tokenizer, model.words))
    _marks(spec.config, tokenizer)
    spec.config.layer_norm_epsilon = _epsilon(model)
    return spec


def _stack(spec: Any, blocks: nn.ModuleList, closing: nn.Module) -> None:
    for layer, block in zip(spec.layer, blocks, strict=True):
        assert isinstance(block, Block)
        _inward(layer.self_attention, block.attention)
        _norm(layer.self_attention.layer_norm, block.around_attention.norm)
        if block.cross is not None and block.around_cross is not None:
            _outward(layer.attention, block.cross)
            _norm(layer.attention.layer_norm, block.around_cross.norm)
        _norm(layer.ffn.layer_norm, block.around_feed_forward.norm)
        _linear(layer.ffn.linear_0, block.feed_forward.wide)
        _linear(layer.ffn.linear_1, block.feed_forward.narrow)
    if isinstance(closing, LayerNorm):
        _norm(spec.layer_norm, closing)


def _inward(spec: Any, attention: Attention) -> None:
    _linear(spec.linear[0], attention.score.query, attention.score.key, attention.value)
    _linear(spec.linear[1], attention.output)


def _outward(spec: Any, attention: Attention) -> None:
    _linear(spec.linear[0], attention.score.query)
    _linear(spec.linear[1], attention.score.key, attention.value)
    _linear(spec.linear[2], attention.output)


def _linear(spec: Any, *parts: Any) -> None:
    """Matrices under each other, as one product."""
    spec.weight = _numbers(torch.cat([part.weight for part in parts]))
    if any(part.bias is not None for part in parts):
        biases = [part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias for part in parts]
        spec.bias = _numbers(torch.cat(biases))


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = _numbers(norm.weight)
    spec.beta = np.zeros_like(spec.gamma) if norm.bias is None else _numbers(norm.bias)


def _epsilon(model: nn.Module) -> float:
    """The engine has one for all norms."""
    found = sorted({part.eps for part in model.modules() if isinstance(part, nn.LayerNorm)})
    if len(found) > 1:
        raise ConfigError(f"epsilon: CTranslate2 has one for all norms, but the model has {found}; export it to onnx")
    return found[0]


def _activation(name: str) -> Any:
    return getattr(needed("ctranslate2.specs.common_spec", "ctranslate2").Activation, ACTIVATIONS[name])


def _numbers(tensor: Tensor) -> np.ndarray:
    found: np.ndarray = tensor.detach().numpy()
    return found


def _specs() -> Any:
    return needed("ctranslate2.specs.transformer_spec", "ctranslate2")


# ---- words and marks


def _vocabulary(tokenizer: Tokenizer, rows: nn.Embedding) -> list[str]:
    """A name for each row of the model, also for those that no token uses."""
    words = tokenizer.words()
    return [words.get(number, f"<unused-{number}>") for number in range(rows.num_embeddings)]


def _marks(config: Any, tokenizer: Tokenizer) -> None:
    name, marks = tokenizer.inner.id_to_token, tokenizer.marks
    config.bos_token, config.eos_token = name(marks.begin), name(marks.end)
    config.unk_token = name(marks.end if marks.unknown is None else marks.unknown)  # a vocabulary that spells has none


def _frame(config: Any, tokenizer: Tokenizer) -> None:
    """The engine starts its answer by itself, and puts around a source what stands around each."""
    config.decoder_start_token = config.bos_token
    config.add_source_eos = True
    before = tokenizer.marks.before
    if len(before) > 1:
        raise ConfigError(
            f"marks: CTranslate2 puts one mark before a source, but {len(before)} are wanted; export it to onnx"
        )
    if before:
        config.bos_token, config.add_source_bos = tokenizer.inner.id_to_token(before[0]), True


# ---- the check


# What is padded holds any word, here and there: nobody looks at it.


@torch.inference_mode()
def _same_translations(found: Comparison, model: Transformer, tokenizers: Tokenizers, engine: Any) -> None:
    dice, marks, limit = torch.Generator().manual_seed(0), tokenizers.target.marks, answer(model.longest)
    for rows in lengths(model.longest):
        sources = words(tokenizers.source, [max(1, length - 2) for length in rows], dice)  # and the marks around them
        targets = words(tokenizers.target, [min(length, limit) for length in rows], dice)
        tokens, real = pad([tokenizers.source.marks.source(row) for row in sources], sources[0][0])
        found.shapes.append(tuple(tokens.shape))

        told = [_named(tokenizers.source, row) for row in sources]
        scored = engine.score_batch(told, [_named(tokenizers.target, row) for row in targets])
        for row, target in enumerate(targets):
            heard = torch.tensor([[marks.begin, *target, marks.end]])
            hidden, _ = model(tokens[row : row + 1, real[row]], None, heard[:, :-1])
            found.numbers(model.head.logprobs(hidden, heard[:, 1:])[0], torch.tensor(scored[row].log_probs))

        written = engine.translate_batch(told, beam_size=1, max_decoding_length=limit, min_decoding_length=0)
        start = torch.full((len(tokens), 1), marks.begin)
        said = _greedy(model, start, model.start(tokens, real), marks.end, limit)
        for ours, theirs in zip(said, written, strict=True):
            found.tokens(ours, _numbered(tokenizers.target, theirs.hypotheses[0]))


@torch.inference_mode()
def _same_continuations(found: Comparison, model: GPT, tokenizer: Tokenizer, engine: Any) -> None:
    dice, limit = torch.Generator().manual_seed(0), answer(model.longest)
    for rows in lengths(model.longest):
        prompts = words(tokenizer, rows, dice)
        tokens, real = pad(prompts, prompts[0][0])
        found.shapes.append(tuple(tokens.shape))
        hidden, _ = model(None, None, tokens)
        there = torch.from_numpy(np.array(engine.forward_batch(prompts)))
        found.numbers(model.head.logits(hidden)[real], there[real])
        for prompt in prompts:
            (written,) = engine.generate_batch(
                [_named(tokenizer, prompt)], max_length=limit, include_prompt_in_result=False
            )  # fmt: skip
            (said,) = _greedy(model, torch.tensor([prompt]), model.start(), tokenizer.marks.end, limit)
            found.tokens(said, written.sequences_ids[0])


def _greedy(model: Any, tokens: Tensor, state: Any, end: int, limit: int) -> list[list[int]]:
    """The likeliest token, again and again, up to each row's end."""
    said = []
    for _ in range(limit):
        logits, state = model.step(tokens, state)
        tokens = logits.argmax(-1, keepdim=True)
        said.append(tokens)
    rows: list[list[int]] = torch.cat(said, 1).tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


def _named(tokenizer: Tokenizer, row: Sequence[int]) -> list[str]:
    words = tokenizer.words()
    return [words[number] for number in row]


def _numbered(tokenizer: Tokenizer, row: Sequence[str]) -> list[int]:
    numbers = {name: number for number, name in tokenizer.words().items()}
    return [numbers[name] for name in row]
