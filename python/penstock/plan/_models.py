# SPDX-License-Identifier: Apache-2.0
"""Models and their parameters, counted without torch and without the weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock import _core
from penstock._base.arguments import got, named
from penstock._base.errors import Unsupported
from penstock.plan._answer import Answer
from penstock.plan._ask import ask, text

_FILE_BYTES_MAX = 16 << 20
_LAYERS_MAX = 1000  # transformers builds as many in seconds


@dataclass(frozen=True)
class Tensors:
    """Equal tensors of a model; "*" in the name is the number of the layer or expert. columns: 1 for a vector."""

    name: str
    rows: int
    columns: int
    count: int

    @property
    def parameters(self) -> int:
        """The parameters of all of them."""
        return self.rows * self.columns * self.count


@dataclass(frozen=True)
class KeyValueCache:
    """The keys and values that a generating model keeps. elements: of one layer and one token, keys and values
    together. layers: those that keep all tokens. windowed_layers: those that keep only the last `window` tokens."""

    elements: int
    layers: int
    windowed_layers: int
    window: int


@dataclass(frozen=True)
class Model:
    """The properties of a model that matter for storage.

    parameters: shared (tied) ones count once. layers: 0, without tensors, if only the number of parameters is known.
    assumed: a line for each field that the file lacks. source: the origin of the figures.
    cache: the keys and values of each token; None if that is not known, and for encoders."""

    name: str
    parameters: int
    layers: int
    tensors: tuple[Tensors, ...]
    assumed: tuple[str, ...]
    source: str
    cache: KeyValueCache | None = None


@dataclass(frozen=True)
class Optimizer:
    """The bytes of a checkpoint for each parameter: weights, a copy of them in fp32 (master), and the states of the
    optimizer. Those of adafactor and adam-8bit depend on the shapes; the values here are for large tensors."""

    name: str
    weights: float
    master: float
    states: float
    formula: str
    source: str


def models() -> tuple[str, ...]:
    """The names of the models of model(), checkpoint(), restore() and stream()."""
    return tuple(_core.plan_models()[0])


def model_types() -> tuple[str, ...]:
    """The values of model_type in a config.json that are counted without transformers."""
    return tuple(_core.plan_models()[1])


def optimizers() -> tuple[Optimizer, ...]:
    """The optimizers of checkpoint() and restore()."""
    return tuple(Optimizer(*row) for row in _core.plan_models()[2])


@named
def model(name: str | None = None, *, config: Any = None) -> Model:
    """The exact number of parameters of a model, and its tensors.

        penstock.plan.model(config="Llama-3-8B/config.json").parameters     # 8030261248
        penstock.plan.model("dlio-llama-70b").parameters                    # 69882617856

    name: one of models(), or a number such as "13B".
    config: instead of a name, a Hugging Face config: the path of a config.json or of its folder, a mapping, or an
        object with to_dict(). It is counted as transformers builds the model. A type that is not in model_types() is
        counted by transformers itself, on the meta device, if it is installed.
    Raises ValueError for an unknown name (with the nearest one), for invalid JSON, and for a field that is out of range
    or contradicts another one; penstock.Unsupported for an unknown type, with the nearest one; OSError for a file that
    cannot be read. Thread-safe."""
    if (name is None) == (config is None):
        raise TypeError("plan model: expected a name or a config, and not both")
    if config is None:
        return _model(*_core.plan_model(text("model", "name", name), ""))
    words = config_text("model", config)
    try:
        return _model(*_core.plan_model("", words))
    except Unsupported as error:
        return _by_transformers(words, error)


def ask_of_model(verb: str, options: dict[str, Any]) -> Answer:
    """The answer of a question about a model. transformers counts the model if the library does not know its type."""
    if options["config"] is None:
        return ask(verb, options)
    text(verb, "model", options["model"])
    words = config_text(verb, options["config"])
    try:
        return ask(verb, {**options, "config": words})
    except Unsupported as error:
        counted = _by_transformers(words, error)
    answer = ask(verb, {**options, "config": None, "model": str(counted.parameters)})
    return replace(answer, notes=(*answer.notes, f"{counted.name}: {counted.source}."))


def config_text(verb: str, config: Any) -> str:
    """The text of a config.json."""
    if hasattr(config, "to_dict") and not isinstance(config, type):
        config = config.to_dict()
    if isinstance(config, Mapping):
        try:
            return json.dumps(config)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"plan {verb}: config: expected a mapping that JSON can hold: {error}") from error
    if not isinstance(config, str | os.PathLike):
        raise TypeError(
            f"plan {verb}: config: expected the path of a config.json, a mapping, or an object with to_dict(), "
            f"got {got(config)}"
        )
    path = Path(config)
    with open(path / "config.json" if path.is_dir() else path, "rb") as file:
        found = file.read(_FILE_BYTES_MAX + 1)
    if len(found) > _FILE_BYTES_MAX:
        raise ValueError(f"plan {verb}: config: {os.fspath(config)!r}: longer than 16 MiB; expected a config.json")
    return found.decode("utf-8", "surrogateescape") or " "


def _model(name: str, parameters: int, layers: int, tensors: Any, assumed: Any, source: str, cache: Any) -> Model:
    kept = None if cache is None else KeyValueCache(*cache)
    return Model(name, parameters, layers, tuple(Tensors(*row) for row in tensors), tuple(assumed), source, kept)


def _by_transformers(words: str, error: Unsupported) -> Model:
    try:
        import torch
        import transformers  # imported first: without it torch is not needed
    except ImportError:
        raise error from None
    fields = json.loads(words)
    kind = fields.get("model_type") if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise error from None
    for name, value in fields.items():
        if name.endswith(("layers", "layer")) and isinstance(value, int) and value > _LAYERS_MAX:
            raise ValueError(f"plan model: config: {name} is {got(value)}; expected {_LAYERS_MAX} layers at most")
    try:
        built = _built(torch, transformers, fields)
    except Exception as wrong:  # transformers raises many types of errors for a wrong field
        raise ValueError(f"plan model: config: transformers refuses this {kind}: {wrong}") from wrong
    count = sum({id(one): one.numel() for one in built.parameters()}.values())
    source = f"{type(built).__name__}, counted by transformers {transformers.__version__} on the meta device"
    return Model(kind, count, 0, (), (), source)


def _built(torch: Any, transformers: Any, fields: dict[str, Any]) -> Any:
    """Builds the model on the meta device: of the class that the file names; else, as for the types that the library
    counts, with a token head if there is one."""
    config = transformers.AutoConfig.for_model(**fields)
    named_class = getattr(transformers, str((fields.get("architectures") or [""])[0]), None)
    with torch.device("meta"):
        if isinstance(named_class, type) and issubclass(named_class, transformers.PreTrainedModel):
            built = named_class(config)
        elif type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            built = transformers.AutoModelForCausalLM.from_config(config)
        else:
            built = transformers.AutoModel.from_config(config)
    built.tie_weights()
    return built
