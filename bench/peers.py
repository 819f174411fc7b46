"""The same models in other hands: Hugging Face Marian, BERT and GPT-2 with our weights, torch.nn.Transformer of our
shapes or with our weights, and the recurrent encoder-decoder as a plain loop over words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.core.block import Block
from regard.core.linear import pack
from regard.core.position import Sinusoidal
from regard.fast import prepare
from regard.interop.bert import FAMILY as BERT
from regard.interop.family import Family, config_of, to_theirs
from regard.interop.gpt2 import FAMILY as GPT2
from regard.models import bert, gpt, seq2seq
from regard.models.transformer import SIZES, Config, Transformer
from regard.weights import weights

if TYPE_CHECKING:  # it takes two seconds to import, and most engines in processes of their own do without
    from transformers import BertForPreTraining, GPT2LMHeadModel, MarianMTModel

Model = TypeVar("Model", bound=nn.Module)
Twin = TypeVar("Twin", bound=nn.Module)

PAD, BOS, EOS = 0, 1, 2
SMOOTHING = 0.1  # of labels, where translators learn


def ready(model: Model) -> Model:
    """As `regard.load` prepares it; on a CPU without the accelerator, which has races of its own (bench/fast.py)."""
    return prepare(model) if next(model.parameters()).is_cuda else pack(model)


def shape(size: str, vocab: int) -> Config:
    return Config(**{**SIZES[size], "vocab": vocab, "bias": True, "dropout": 0.1})


def ours(size: str, vocab: int) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(shape(size, vocab))
    with torch.no_grad():  # sharper than at birth, so that greedy choices do not hang on the last bit
        model.words.weight.mul_(3.0)
    return model


def marian(model: Transformer) -> MarianMTModel:
    """Hugging Face's model with our weights; only the order of sine and cosine differs, so ours takes its table."""
    from transformers import MarianConfig, MarianMTModel

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


def our_bert(size: str, vocab: int) -> bert.Bert:
    torch.manual_seed(0)
    return bert.Bert(bert.Config(**{**bert.SIZES[size], "vocab": vocab, "head": "pretrain"}))


def hugging_face_bert(model: bert.Bert) -> BertForPreTraining:
    """Hugging Face's BERT with both heads and our weights."""
    from transformers import BertForPreTraining

    return _twin(BERT, BertForPreTraining, model)


def our_gpt2(**settings: int) -> gpt.GPT:
    """Of 124 million parameters, unless the settings make it smaller."""
    torch.manual_seed(0)
    return gpt.GPT(gpt.Config(**{**gpt.SIZES["gpt2"], **settings}))


def hugging_face_gpt2(model: gpt.GPT) -> GPT2LMHeadModel:
    """Hugging Face's GPT-2 with our weights, and the faster of its two names for GELU."""
    from transformers import GPT2LMHeadModel

    marks = {"bos_token_id": None, "eos_token_id": None}
    return _twin(GPT2, GPT2LMHeadModel, model, activation_function="gelu_pytorch_tanh", **marks)


def _twin(family: Family, kind: type[Twin], model: bert.Bert | gpt.GPT, **settings: Any) -> Twin:
    name = kind.__name__
    twin = kind(kind.config_class(**config_of(family, name, model.config) | settings))
    tensors = to_theirs(family.rows(name, model.config, family.prefix), weights(model))
    missing, strange = twin.load_state_dict(tensors, strict=False)
    assert not strange
    assert set(missing) <= set(family.twins(model.config, family.prefix))  # what is tied
    return twin


class Plain(nn.Module):
    """What one writes with torch.nn.Transformer: the same shapes, a tied head, the loss over all positions."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(c.vocab or 0, c.dim)
        nn.init.normal_(self.words.weight, std=c.dim**-0.5)
        self.places = nn.Embedding(512, c.dim)
        self.body = nn.Transformer(
            c.dim, c.heads, c.layers, c.layers, c.hidden, dropout=c.dropout, batch_first=True
        )  # fmt: skip
        self.scale = c.dim**0.5

    def forward(self, source: Tensor, target: Tensor, wanted: Tensor) -> Tensor:
        hidden = self.body(
            self.embed(source), self.embed(target), tgt_mask=_causal(target), tgt_is_causal=True,
            src_key_padding_mask=source == PAD, memory_key_padding_mask=source == PAD,
        )  # fmt: skip
        logits = hidden @ self.words.weight.T
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.words(tokens) * self.scale + self.places.weight[: tokens.shape[1]]

    @torch.inference_mode()
    def greedy(self, source: Tensor, begin: int, end: int, length: int) -> Tensor:
        """So many words after `begin`, none of them `end`: (B, S) -> (B, length). It keeps nothing of what it has
        computed, so the decoder reads all words so far for each new one."""
        memory = self.body.encoder(self.embed(source))
        said = torch.full_like(source[:, :1], begin)
        for _ in range(length):
            hidden = self.body.decoder(self.embed(said), memory, tgt_mask=_causal(said), tgt_is_causal=True)
            logits = hidden[:, -1] @ self.words.weight.T
            logits[:, end] = -torch.inf
            said = torch.cat([said, logits.argmax(-1, keepdim=True)], 1)
        return said[:, 1:]


def _causal(tokens: Tensor) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device, dtype=torch.bool)


def plain(model: Transformer) -> Plain:
    """torch.nn.Transformer with our weights and our positions, without the norm that it adds at the end of a stack."""
    twin = Plain(model.config)
    assert isinstance(model.positions, Sinusoidal)
    twin.places = nn.Embedding.from_pretrained(model.positions.table.clone())
    twin.words.load_state_dict(model.words.state_dict())
    for stack, blocks in ((twin.body.encoder, model.encoder), (twin.body.decoder, model.decoder)):
        stack.norm = None
        for layer, block in zip(stack.layers, blocks, strict=True):
            _copy_layer(layer, block)
    return twin


@torch.no_grad()
def _copy_layer(layer: nn.Module, block: Block) -> None:
    pairs, residuals = [(layer.self_attn, block.attention)], [block.around_attention, block.around_feed_forward]
    if block.cross is not None:
        pairs.append((layer.multihead_attn, block.cross))
        residuals.insert(1, block.around_cross)
    for theirs, mine in pairs:
        parts = (mine.score.query, mine.score.key, mine.value)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(mine.output.state_dict())
    for number, residual in enumerate(residuals, 1):
        getattr(layer, f"norm{number}").load_state_dict(residual.norm.state_dict())
    layer.linear1.load_state_dict(block.feed_forward.wide.state_dict())
    layer.linear2.load_state_dict(block.feed_forward.narrow.state_dict())


class Loop(nn.Module):
    """What one writes after the tutorials: a GRU that looks with its last state by v·tanh(W[s; h]), word after word.

    `output` tells the words from [state; word; context].
    """

    def __init__(self, config: seq2seq.Config, output: nn.Module) -> None:
        super().__init__()
        dim, wide, vocab = config.dim, config.embedding, config.vocab or 0
        self.source_words, self.words = nn.Embedding(vocab, wide), nn.Embedding(vocab, wide)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.GRU(wide, dim, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * dim, dim)
        self.energy, self.v = nn.Linear(3 * dim, dim), nn.Linear(dim, 1, bias=False)
        self.decoder = nn.GRU(wide + 2 * dim, dim, batch_first=True)
        self.output = output

    def forward(self, source: Tensor, target: Tensor, wanted: Tensor) -> Tensor:
        real = source != PAD
        memory, state = self.read(source, real)
        logits = []
        for t in range(target.shape[1]):
            word = self.dropout(self.words(target[:, t : t + 1]))
            context = self.look(state, memory, real)
            y, state = self.decoder(torch.cat([word, context], -1), state)
            logits.append(self.output(torch.cat([y, word, context], -1)))
        return nn.functional.cross_entropy(
            torch.cat(logits, 1).flatten(0, 1), wanted.flatten(), ignore_index=PAD
        )  # fmt: skip

    def read(self, source: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        x = self.dropout(self.source_words(source))
        packed = pack_padded_sequence(x, real.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        memory, last = self.encoder(packed)
        state = self.bridge(torch.cat([last[0], last[1]], -1)).tanh()
        return pad_packed_sequence(memory, batch_first=True)[0], state[None]

    def look(self, state: Tensor, memory: Tensor, real: Tensor) -> Tensor:
        asked = state.transpose(0, 1).expand(-1, memory.shape[1], -1)
        scores = self.v(self.energy(torch.cat([asked, memory], -1)).tanh()).squeeze(-1)  # (B, S)
        weights = scores.masked_fill(~real, torch.finfo(scores.dtype).min).softmax(-1)
        return torch.bmm(weights[:, None], memory)


def tutorial(model: seq2seq.Seq2Seq) -> Loop:
    """The loop as the tutorials have it: one matrix from [state; word; context] to all words."""
    c = model.config
    torch.manual_seed(0)
    return Loop(c, nn.Linear(3 * c.dim + c.embedding, c.vocab or 0))


def same_model(model: seq2seq.Seq2Seq) -> Loop:
    """The loop with our deep output and our weights: it computes what we compute."""
    c, ours = model.config, model.decoder
    assert isinstance(ours, seq2seq.Bahdanau)
    inner, outer = nn.Linear(3 * c.dim + c.embedding, 2 * c.embedding), nn.Linear(c.embedding, c.vocab or 0)
    loop = Loop(c, nn.Sequential(inner, Maxout(), nn.Dropout(c.dropout), outer))
    score = ours.cross.score
    for to, source in (
        (loop.source_words, model.source_words),
        (loop.words, model.words),
        (loop.encoder, model.encoder.body),
        (loop.bridge, model.bridge[0]),
        (loop.decoder, ours.rnn.body),
        (inner, ours.output.inner),
        (outer, model.head),
    ):
        to.load_state_dict(source.state_dict())
    with torch.no_grad():
        loop.energy.weight.copy_(torch.cat([score.query.weight, score.key.weight], 1))  # type: ignore[list-item]
        loop.energy.bias.copy_(score.query.bias)  # type: ignore[arg-type]
        loop.v.weight.copy_(score.v[:, :, 0])  # type: ignore[index]
    return loop


class Maxout(nn.Module):
    """The larger of each two neighbours."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, 2)).amax(-1)
