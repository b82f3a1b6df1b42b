"""A model's shape, as its public config.json gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Config = Mapping[str, object]


class BadConfigError(ValueError):
    """A config.json that does not say what the performance model needs; the sentence names the field."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: the ranks and head widths (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    query_rank: int  # 0: queries are projected directly
    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture-of-experts MLP: `chosen` of `total` experts a token, and shared ones that every token takes."""

    total: int
    chosen: int
    width: int
    shared_width: int = 0


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Gated delta-net layers: a fixed state instead of a growing KV cache (arXiv 2412.06464, section 3)."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's sizes. `layers` counts all blocks; `dense_layers` those whose MLP is no mixture of experts."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    dense_layers: int
    dense_width: int
    tied: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    recurrent: Recurrent | None = None
    window: int = 0  # tokens that a sliding-window layer looks back; 0: there is none
    window_layers: int = 0
    attended: int = 0  # tokens that sparse attention reads at most; 0: all
    gated: bool = False  # attention output has a gate of the queries' size
    experts_only: bool = False  # only routed experts are quantised; the rest stays bf16

    @property
    def attention_layers(self) -> int:
        """Layers that keep a KV cache."""
        return self.layers - (self.recurrent.layers if self.recurrent else 0)

    @property
    def expert_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return self.layers - self.dense_layers


def shape_from_config(config: Config) -> ModelConfig:
    """Read a config.json in Hugging Face's field names. Raises BadConfigError, naming the field that is missing."""
    text = {**config, **_mapping(config, "text_config")}
    layers, hidden, heads = (_count(text, name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    experts = _experts(text)
    head_dim = _integer(text, "head_dim", hidden // heads)
    windows = _window_layers(text, layers)
    return ModelConfig(
        layers,
        hidden,
        heads,
        _integer(text, "num_key_value_heads", heads),
        head_dim,
        _count(text, "vocab_size"),
        _dense_layers(text, layers) if experts else layers,
        _integer(text, "intermediate_size", 0) if experts else _count(text, "intermediate_size"),
        bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        experts,
        _latent(text),
        _recurrent(text, layers),
        _integer(text, "sliding_window", 0) if windows else 0,
        windows,
        _integer(text, "index_topk", 0),
        bool(text.get("attn_output_gate", False)),
        _experts_only(config),
    )


def _count(config: Config, name: str) -> int:
    """A field that must be a positive whole number."""
    value = config.get(name)
    if value is None:
        raise BadConfigError(f"config.json has no {name}; the performance model needs it")
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise BadConfigError(f"config.json: {name} is {value!r}; it must be a positive whole number")
    return value


def _integer(config: Config, name: str, default: int) -> int:
    """A field that may be missing, null or zero."""
    return default if config.get(name) in (None, 0) else _count(config, name)


def _mapping(config: Config, name: str) -> Config:
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}


def _first(config: Config, names: tuple[str, ...]) -> int:
    """The first of several spellings that is there; 0 for none."""
    return next((_count(config, name) for name in names if config.get(name)), 0)


def _experts(config: Config) -> Experts | None:
    total = _first(config, ("num_experts", "n_routed_experts", "num_local_experts"))
    if total <= 1:
        return None
    chosen = _first(config, ("num_experts_per_tok", "experts_per_token", "num_experts_per_token"))
    if not chosen:
        raise BadConfigError("config.json has experts but no num_experts_per_tok; the performance model needs it")
    width = _first(config, ("moe_intermediate_size", "intermediate_size"))
    if not width:
        raise BadConfigError("config.json has experts but no moe_intermediate_size; the performance model needs it")
    shared = _first(config, ("shared_expert_intermediate_size", "shared_intermediate_size"))
    return Experts(total, chosen, width, shared or width * _first(config, ("n_shared_experts", "num_shared_experts")))


def _dense_layers(config: Config, layers: int) -> int:
    """Blocks of a mixture-of-experts model that keep a dense MLP."""
    first = config.get("first_k_dense_replace")
    only = config.get("mlp_only_layers")
    step = config.get("interleave_moe_layer_step")
    if isinstance(step, int) and step > 1:
        return layers - layers // step
    return (first if isinstance(first, int) else 0) + (len(only) if isinstance(only, list) else 0)


def _latent(config: Config) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        _integer(config, "q_lora_rank", 0),
        _count(config, "kv_lora_rank"),
        _count(config, "qk_rope_head_dim"),
        _count(config, "qk_nope_head_dim"),
        _count(config, "v_head_dim"),
    )


def _kinds(config: Config) -> list[object]:
    kinds = config.get("layer_types")
    return kinds if isinstance(kinds, list) else []


def _recurrent(config: Config, layers: int) -> Recurrent | None:
    if not config.get("linear_num_value_heads"):
        return None
    count = _kinds(config).count("linear_attention")
    if not count:
        count = layers - layers // _count(config, "full_attention_interval")
    names = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    return Recurrent(count, *(_count(config, name) for name in names))


def _window_layers(config: Config, layers: int) -> int:
    """Layers with a sliding window: those that layer_types names, else all where a window is in use."""
    kinds = _kinds(config)
    if kinds:
        return kinds.count("sliding_attention")
    in_use = config.get("use_sliding_window", "layer_types" not in config and bool(config.get("sliding_window")))
    return layers if in_use and config.get("sliding_window") else 0


def _experts_only(config: Config) -> bool:
    """Does the checkpoint keep attention unquantised? Its quantization_config lists what is left out."""
    quantization = _mapping(config, "quantization_config") or _mapping(
        _mapping(config, "text_config"), "quantization_config"
    )
    kept = quantization.get("modules_to_not_convert") or quantization.get("ignore") or []
    return isinstance(kept, list) and any("self_attn" in str(name) for name in kept)
