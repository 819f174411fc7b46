"""What may be asked, and the form of the answers. Every text, list and number has bounds; unknown names are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_INPUTS = 64
MOST_LETTERS = 100_000  # of one text; a body has room for them even where each is written as \uXXXX
COLD = 0.01  # a temperature below which drawing is choosing the likeliest

Text = Annotated[str, Field(max_length=MOST_LETTERS)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MOST_INPUTS)]
Stop = Annotated[str, Field(min_length=1, max_length=64)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Seed = Annotated[int, Field(ge=0, lt=1 << 53)]  # what a number of JSON holds exactly


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Decoding(Asked):
    """How an answer is searched for, as in a recipe's [decode]; what is left out is as the recipe says."""

    beam: int | None = Field(None, ge=1, le=64)
    expand: int | None = Field(None, ge=1, le=256)
    nbest: int | None = Field(None, ge=1, le=64)
    penalty: Literal["wu", "average", "none"] | None = None
    alpha: float | None = Field(None, ge=0, le=10)
    sample: bool | None = None
    temperature: float | None = Field(None, ge=COLD, le=100)
    top_k: int | None = Field(None, ge=0, le=1_000_000)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, lt=1)
    seed: Seed | None = None
    block_ngram: int | None = Field(None, ge=0, le=64)
    shortest: int | None = Field(None, ge=0, le=65_536)
    longest: int | None = Field(None, ge=0, le=65_536)
    ratio: float | None = Field(None, ge=0, le=100)
    extra: int | None = Field(None, ge=1, le=65_536)


class Predict(Decoding):
    model: Name | None = None
    """Which run, by its name; the first when left out."""
    input: Text | Texts
    """One text or several, in the form in which the task is asked: pairs have a tab between their texts."""
    prefix: Annotated[str, Field(max_length=10_000)] | None = None
    """Words that every answer begins with; of runs that rewrite."""
    top: int | None = Field(None, ge=1, le=1000)
    """So many likeliest words for a mask, labels, or answers to a question."""
    embed: bool | None = None
    """The vector of each text instead of an answer."""
    pooling: Literal["mean", "first"] | None = None
    choices: Texts | None = None
    """Continuations to rank by their likelihood; of runs that go on with a text."""


Zero = Annotated[float, Field(ge=0, le=0)]


class StreamOptions(Asked):
    include_usage: bool = False


class Completions(Asked):
    """In the shape of OpenAI's. What that has besides may come with the value that changes nothing; any other is
    refused, and not ignored."""

    model: Name | None = None
    prompt: Text | Texts
    max_tokens: int | None = Field(16, ge=1, le=65_536)
    temperature: float | None = Field(1.0, ge=0, le=100)
    """Near 0: the likeliest token, again and again."""
    top_p: float | None = Field(1.0, gt=0, le=1)
    n: int | None = Field(1, ge=1, le=64)
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    seed: Seed | None = None
    """The same seed draws the same answer to the same prompt; another each time when left out."""
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=1000)] | None = None
    """Not looked at."""
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    echo: Literal[False] | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    logprobs: None = None
    presence_penalty: Zero | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None


class Embeddings(Asked):
    """In the shape of OpenAI's."""

    model: Name | None = None
    input: Text | Texts
    encoding_format: Literal["float", "base64"] | None = "float"
    """base64: of the numbers as float32, little-endian."""
    pooling: Literal["mean", "first"] | None = None
    user: Annotated[str, Field(max_length=1000)] | None = None
    """Not looked at."""
    dimensions: None = None


Place = Annotated[int, Field(ge=0, le=65_536)]
Digits = Annotated[str, Field(pattern=r"^[0-9]{1,5}$")]


class Force(Asked):
    prefix: Annotated[str, Field(max_length=10_000)] | None = None
    """Words that the answer begins with."""
    look: Annotated[dict[Digits, Place], Field(max_length=4096)] | None = None
    """For positions written, the position read that they must look at."""


class Looked(Decoding):
    """What a model looks at while it answers, and what it would do otherwise."""

    model: Name | None = None
    input: Text
    silence: Annotated[dict[Name, Annotated[list[Place], Field(max_length=256)]], Field(max_length=256)] | None = None
    """Heads that say nothing, by the name of their attention."""
    force: Force | None = None


# ---- answers


class Told(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(Told):
    message: str
    type: str
    code: str


class Error(Told):
    error: Problem


class Model(Told):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    ready: bool
    system: str
    task: str
    parameters: int | None
    longest: int | None
    settings: list[str]
    example: str


class ModelList(Told):
    object: Literal["list"]
    data: list[Model]


class Predicted(Told):
    id: str
    model: str
    task: str
    answers: list[dict[str, Any]]


class Usage(Told):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Choice(Told):
    text: str
    index: int
    logprobs: None
    finish_reason: Literal["stop", "length"] | None


class Completion(Told):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class Embedding(Told):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Told):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Told):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Health(Told):
    status: str
