"""The same Transformer in other hands: Hugging Face Marian with our weights, torch.nn.Transformer of our shapes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from regard.core.block import Block
from regard.core.position import Sinusoidal
from regard.models.transformer import SIZES, Config, Transformer

PAD, BOS, EOS = 0, 1, 2


def ours(size: str, vocab: int) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(Config(**{**SIZES[size], "vocab": vocab, "bias": True, "dropout": 0.1}))
    with torch.no_grad():  # sharper than at birth, so that greedy choices do not hang on the last bit
        model.words.weight.mul_(3.0)
    return model


def marian(model: Transformer) -> MarianMTModel:
    """Hugging Face's model with our weights; only the order of sine and cosine differs, so ours takes its table."""
    c = model.config
    twin = MarianMTModel(
        MarianConfig(
            vocab_size=c.vocab, d_model=c.dim, encoder_layers=c.layers, decoder_layers=c.layers,
            encoder_attention_heads=c.heads, decoder_attention_heads=c.heads,
            encoder_ffn_dim=c.hidden, decoder_ffn_dim=c.hidden, activation_function="relu", scale_embedding=True,
            dropout=c.dropout, attention_dropout=0.0, activation_dropout=0.0, max_position_embeddings=256,
            pad_token_id=PAD, eos_token_id=EOS, bos_token_id=BOS, decoder_start_token_id=BOS, forced_eos_token_id=None,
        )
    )  # fmt: skip
    assert isinstance(model.positions, Sinusoidal)
    with torch.no_grad():
        twin.model.shared.weight.copy_(model.words.weight)
        model.positions.table = twin.model.encoder.embed_positions.weight.detach().clone()
        for layers, blocks in ((twin.model.encoder.layers, model.encoder), (twin.model.decoder.layers, model.decoder)):
            for layer, block in zip(layers, blocks, strict=True):
                _copy_block(layer, block)
    return twin


def _copy_block(layer: nn.Module, block: Block) -> None:
    pairs = [(layer.self_attn, block.attention)]
    norms = [(layer.self_attn_layer_norm, block.around_attention), (layer.final_layer_norm, block.around_feed_forward)]
    if block.cross is not None:
        pairs.append((layer.encoder_attn, block.cross))
        norms.append((layer.encoder_attn_layer_norm, block.around_cross))
    for theirs, mine in pairs:
        for to, source in (
            (theirs.q_proj, mine.score.query),
            (theirs.k_proj, mine.score.key),
            (theirs.v_proj, mine.value),
            (theirs.out_proj, mine.output),
        ):
            to.load_state_dict(source.state_dict())
    for norm, residual in norms:
        norm.load_state_dict(residual.norm.state_dict())
    layer.fc1.load_state_dict(block.feed_forward.wide.state_dict())
    layer.fc2.load_state_dict(block.feed_forward.narrow.state_dict())


class Plain(nn.Module):
    """What one writes with torch.nn.Transformer: the same shapes, a tied head, the loss over all positions."""

    def __init__(self, size: str, vocab: int) -> None:
        super().__init__()
        s = SIZES[size]
        self.words = nn.Embedding(vocab, s["dim"])
        nn.init.normal_(self.words.weight, std=s["dim"] ** -0.5)
        self.places = nn.Embedding(512, s["dim"])
        self.body = nn.Transformer(
            s["dim"], s["heads"], s["layers"], s["layers"], s["hidden"], dropout=0.1, batch_first=True
        )  # fmt: skip
        self.scale = s["dim"] ** 0.5

    def forward(self, source: Tensor, target: Tensor, wanted: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device, dtype=torch.bool)
        hidden = self.body(
            self.embed(source), self.embed(target), tgt_mask=causal, tgt_is_causal=True,
            src_key_padding_mask=source == PAD, memory_key_padding_mask=source == PAD,
        )  # fmt: skip
        logits = hidden @ self.words.weight.T
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, label_smoothing=0.1
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.words(tokens) * self.scale + self.places.weight[: tokens.shape[1]]
