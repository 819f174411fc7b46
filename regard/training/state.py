"""What a run remembers besides its weights, as named tensors and back: optimizers, random generators, carry."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regard.errors import CheckpointError
from regard.weights import Tensors, form, weights


def layout(model: nn.Module) -> str:
    """Two models of equal layout can exchange weights."""
    forms = [f"{name} {form(tensor)}" for name, tensor in weights(model).items()]
    return hashlib.sha256("\n".join(forms).encode()).hexdigest()


def optimizer_tensors(model: nn.Module, optimizers: Mapping[str, Optimizer]) -> Tensors:
    """What the optimizers remember, as "optimizer/parameter/slot"."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{which}/{names[id(parameter)]}/{slot}": value
        for which, optimizer in optimizers.items()
        for parameter, slots in optimizer.state.items()
        for slot, value in slots.items()
        if isinstance(value, Tensor)
    }


def put_optimizers(model: nn.Module, optimizers: Mapping[str, Optimizer], given: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    memory: dict[str, dict[int, dict[str, Tensor]]] = {which: {} for which in optimizers}
    places = {which: _places(optimizer) for which, optimizer in optimizers.items()}
    for path, value in given.items():
        which, name, slot = path.split("/")
        shapes = (parameters[name].shape, torch.Size()) if which in optimizers and name in parameters else ()
        if value.shape not in shapes or not value.is_floating_point():
            raise CheckpointError(f"the optimizer state holds {path!r} as {form(value)}, which fits no parameter")
        memory[which].setdefault(places[which][id(parameters[name])], {})[slot] = value
    for which, optimizer in optimizers.items():
        optimizer.load_state_dict({"state": memory[which], "param_groups": optimizer.state_dict()["param_groups"]})


def _places(optimizer: Optimizer) -> dict[int, int]:
    """PyTorch numbers an optimizer's parameters in the order of its groups."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {id(parameter): place for place, parameter in enumerate(parameters)}


def rng_tensors() -> Tensors:
    """The states of all random generators that a run may draw from."""
    _, words, spare = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)
    states = {
        "python": torch.tensor(words),
        "python.spare": torch.tensor([] if spare is None else [spare], dtype=torch.float64),
        "numpy": torch.tensor([*numpy["state"]["key"].tolist(), numpy["state"]["pos"], numpy["has_gauss"]]),
        "numpy.spare": torch.tensor([numpy["gauss"]], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        states |= {f"cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def put_rng(states: Mapping[str, Tensor]) -> None:
    """Generators of GPUs that are not in use are passed over."""
    now = rng_tensors()
    wanted = {name: states[name] for name in now if name in states or "cuda" not in name}
    for name, state in wanted.items():
        if (state.dtype, state.ndim) != (now[name].dtype, now[name].ndim):
            raise CheckpointError(f"the random generator {name!r} cannot be in a state of {form(state)}")
    random.setstate((3, tuple(wanted["python"].tolist()), next(iter(wanted["python.spare"].tolist()), None)))
    *key, position, has_spare = wanted["numpy"].tolist()
    twister = {"key": np.array(key, dtype=np.uint32), "pos": position}
    spare = {"has_gauss": has_spare, "gauss": wanted["numpy.spare"].item()}
    np.random.set_state({"bit_generator": "MT19937", "state": twister, **spare})
    torch.set_rng_state(wanted["torch"])
    for name, state in wanted.items():
        if name.startswith("cuda."):
            torch.cuda.set_rng_state(state, int(name.removeprefix("cuda.")))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever is drawn inside, the random generators are afterwards as they were."""
    before = rng_tensors()
    try:
        yield
    finally:
        put_rng(before)


def pack(carry: Any, tensors: Tensors) -> Any:
    """A task's carry as JSON, with a number in place of each tensor; the tensors go into `tensors`."""
    match carry:
        case None | bool() | int() | float() | str():
            return carry
        case Tensor():
            name = str(len(tensors))
            tensors[name] = carry.detach()
            return {"tensor": name}
        case dict():
            return {"dict": {key: pack(value, tensors) for key, value in carry.items()}}
        case list():
            return {"list": [pack(value, tensors) for value in carry]}
        case tuple():
            return {"tuple": [pack(value, tensors) for value in carry]}
    known = "dicts, lists, tuples, tensors and plain values"
    raise CheckpointError(f"a carry may hold {known}, but this one holds a {type(carry).__name__}")


def unpack(form: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    match form:
        case {"tensor": name}:
            return tensors[name].to(device)
        case {"dict": items}:
            return {key: unpack(value, tensors, device) for key, value in items.items()}
        case {"list": items}:
            return [unpack(value, tensors, device) for value in items]
        case {"tuple": items}:
            return tuple(unpack(value, tensors, device) for value in items)
    return form
