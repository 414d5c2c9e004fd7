"""`specqd inspect`: a model's shape, its weights in memory, and this machine."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specqd.cli import suggest
from specqd.cli.draft_options import PLAIN
from specqd.cli.inspect_head import show_head
from specqd.cli.opening import open_llm
from specqd.cli.options import MachineChoice, machine_options, model_argument, option
from specqd.cli.terminal import aligned, harmless
from specqd.errors import shown

if TYPE_CHECKING:
    from specqd.config import DecoderConfig
    from specqd.config.rope import RopeConfig
    from specqd.llm import LLM
    from specqd.model.loader import PackedMatrix
    from specqd.model.model import Machine, Model

_READ = 128 * 10**6  # bytes that a node's threads read to measure its bandwidth
_PLANES = ("codes", "scales", "residuals", "patches", "plain")


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """One packed matrix: the `names` of its tensors, its size, and bytes by plane."""

    names: tuple[str, ...]
    rows: int
    columns: int
    is_nested: bool
    patches: int
    planes: dict[str, int]

    @classmethod
    def of(cls, packed: "PackedMatrix") -> "MatrixReport":
        weight = packed.weight
        return cls(
            packed.names,
            weight.rows,
            weight.columns,
            weight.is_nested,
            weight.patch_count,
            weight.plane_bytes(),
        )

    @property
    def weights(self) -> int:
        return self.rows * self.columns

    @property
    def fp4_bytes(self) -> int:
        """Bytes that a forward reads in fp4."""
        return self.planes["codes"] + self.planes["scales"]

    @property
    def exact_bytes(self) -> int:
        """Bytes that an exact forward reads: only plain tiles, or all planes of nested ones."""
        return self.planes["plain"] or sum(self.planes.values())


@dataclass(frozen=True, slots=True)
class PackedReport:
    """All packed matrices together."""

    matrices: tuple[MatrixReport, ...]

    @property
    def weights(self) -> int:
        return sum(matrix.weights for matrix in self.matrices)

    @property
    def patches(self) -> int:
        return sum(matrix.patches for matrix in self.matrices)

    @property
    def nested(self) -> int:
        return sum(matrix.is_nested for matrix in self.matrices)

    @property
    def planes(self) -> dict[str, int]:
        return {plane: sum(m.planes[plane] for m in self.matrices) for plane in _PLANES}

    @property
    def bf16_bytes(self) -> int:
        return 2 * self.weights


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A NUMA node: what this process may use of it, and what it uses. Sizes are in bytes; None:
    unknown."""

    id: int
    cores: int
    threads: int
    memory_bytes: int | None
    free_bytes: int | None
    gb_per_s: float | None  # its threads read its own memory; None: too little memory
    plane_bytes: int | None

    @classmethod
    def all_of(cls, model: "Model") -> "list[NodeReport]":
        """Measures the bandwidth of each node."""
        from specqd import _native
        from specqd.model.bandwidth import bandwidth_at
        from specqd.model.model import Machine
        from specqd.model.numa import bytes_by_node

        machine = model.machine
        nodes, threads = _native.topology().nodes, dict(machine.pool.nodes)
        planes = bytes_by_node(each.weight for each in model.weights.matrices)
        reports = []
        for node in nodes:
            pool = machine.pool
            if len(nodes) > 1:
                pool = _native.Pool([(node.id, threads.get(node.id, node.cores), node.cpus)])
            has_room = not 0 <= _native.usable_memory() < 2 * _READ
            reports.append(
                cls(
                    node.id,
                    node.cores,
                    threads.get(node.id, 0),
                    node.memory_bytes if node.memory_bytes >= 0 else None,
                    node.free_bytes if node.free_bytes >= 0 else None,
                    bandwidth_at(Machine(pool, machine.isa), _READ, 3) if has_room else None,
                    planes.get(node.id, 0) if planes else None,
                )
            )
        return reports


@click.command(cls=suggest.WithDrafts)
@model_argument
@machine_options
@option(
    "--matrices",
    "has_matrices",
    excludes=("drafts",),
    is_flag=True,
    help="Also list all packed matrices.",
)
@suggest.options
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
def inspect(
    model: str | None,
    machine: MachineChoice,
    has_matrices: bool,
    drafts: tuple[str, ...],
    prompts: Path | None,
    temperature: float | None,
    is_json: bool,
) -> None:
    """Show a model's shape, size and memory, and this machine.

    For the directory of a trained head: show its kind and size.

    With --drafts: load each format of draft weights in turn, and measure at how many positions the
    model's own draft agrees with the model. Then time the model's own drafts and the models named
    after --drafts, alone and in chains, on a few prompts (a minute or two). The last line is the
    fastest command line.

    \b
    Examples:
      specqd inspect
      specqd inspect ./my-model --matrices
      specqd inspect ./my-head
      specqd inspect Qwen/Qwen3-0.6B --json | jq .bits_per_weight
      specqd inspect ./my-model --drafts ./small ./smaller --prompts prompts.jsonl
    """
    if model is not None and not drafts and show_head(model, is_json=is_json):
        return
    llm = open_llm(model, PLAIN, machine)
    if drafts:
        directories = [each for each in drafts if each]
        suggest.suggest(llm, model, directories, prompts, temperature or 0.0, is_json=is_json)
        return
    packed = PackedReport(tuple(MatrixReport.of(m) for m in llm.model.weights.matrices))
    if is_json:
        click.echo(json.dumps(described(llm, packed)))
        return
    lines = [*shape_lines(llm), "", *packed_lines(llm.model, packed)]
    lines += ["", *machine_lines(llm.model.machine), *node_lines(llm.model)]
    if has_matrices:
        lines += ["", *matrix_lines(packed)]
    click.echo("\n".join(harmless(line) for line in lines))


def described(llm: "LLM", packed: PackedReport) -> dict[str, Any]:
    """The object that --json prints."""
    from specqd import _native

    model, machine = llm.model, llm.model.machine
    bf16 = model.bf16_bytes_per_forward
    exact, draft = model.bytes_per_forward, model.as_draft().bytes_per_forward
    return {
        "directory": str(llm.directory),
        "config": asdict(model.config),
        "parameters": model.weights.parameters,
        "tokenizer": {
            "tokens": llm.tokenizer.vocab_size,
            "special": llm.tokenizer.named_tokens,
            "has_chat_template": llm.tokenizer.has_chat_template,
        },
        "small": small_model(llm),
        "weights": {
            "is_packed_file": model.weights.is_mapped,
            "draft_format": model.weights.draft.value,
            "calibration": model.weights.calibration,
        },
        "bits_per_weight": {"exact": 16 * exact / bf16, "draft": 16 * draft / bf16},
        "patch_share": packed.patches / packed.weights,
        "plane_bytes": packed.planes,
        "bytes_per_token": {"exact": exact, "draft": draft, "bf16": bf16},
        "matrices": [asdict(matrix) for matrix in packed.matrices],
        "machine": {
            "cpu": _native.cpu_model(),
            "isas": _native.available_isas(),
            "isa": machine.isa,
            "amx_refusal": _native.amx_refusal() or None,
            "threads": machine.pool.threads,
            "usable_memory_bytes": _native.usable_memory(),
            "numa": numa_use(machine),
            "nodes": [asdict(each) for each in NodeReport.all_of(model)],
            "unused_nodes": _native.topology().unused,
            "unbound_threads": machine.pool.unbound,
            "fixes_pages": fixes_pages(),
        },
    }


def shape_lines(llm: "LLM") -> list[str]:
    c, tokenizer = llm.model.config, llm.tokenizer
    parameters = llm.model.weights.parameters / 1e6
    embeddings = "tied to the head" if llm.model.weights.embedding is None else "of their own"
    named = [f"{name.removesuffix('_token')} {t}" for name, t in tokenizer.named_tokens.items()]
    template = "a chat template" if tokenizer.has_chat_template else "no chat template"
    return [
        str(llm.directory),
        f"  type        {c.model_type}, {parameters:,.2f} M parameters",
        f"  layers      {c.num_layers} of {c.hidden_size}, {_feed_forward(c)}",
        f"  heads       {c.num_heads} query, {_heads(c)}",
        f"  context     {c.max_positions} positions, {_windows(c)}",
        f"  positions   {'; '.join(map(_rope, c.distinct_ropes)) or 'none'}",
        f"  vocabulary  {c.vocab_size}, embeddings {embeddings}",
        f"  tokenizer   {tokenizer.vocab_size} tokens, {', '.join([*named, template])}",
        *_small_lines(llm),
    ]


def small_model(llm: "LLM") -> dict[str, Any] | None:
    """The small model that is known to draft for this one, and whether it is in the cache."""
    from specqd.hub import cached
    from specqd.siblings import sibling_of

    name = sibling_of(llm.directory)
    return None if name is None else {"name": name, "is_cached": cached(name) is not None}


def _small_lines(llm: "LLM") -> list[str]:
    if (small := small_model(llm)) is None:
        return []
    place = "in the cache" if small["is_cached"] else "not in the cache; `specqd pull` fetches both"
    return [f"  small draft {small['name']}, {place}"]


def _heads(config: "DecoderConfig") -> str:
    if config.latent is not None:
        latent = config.latent
        return f"one latent of {latent.rank} and {latent.rope_dim} that rotate for all"
    heads = " or ".join(f"{count} key/value, of {dim}" for count, dim in config.distinct_heads)
    shared = sum(each.kv_layer is not None for each in config.attentions)
    return heads + (f"; {shared} layers share keys and values" if shared else "")


def _feed_forward(config: "DecoderConfig") -> str:
    experts = config.experts
    if experts is None:
        sizes = dict.fromkeys(map(config.feed_forward_size, range(config.num_layers)))
        return f"feed-forward {' or '.join(map(str, sizes))}"
    return f"{experts.per_token} of {experts.count} experts of {experts.size}"


def _windows(config: "DecoderConfig") -> str:
    if any(config.recurrent_layers):
        full = config.recurrent_layers.count(False)
        return f"full attention on {full} of {config.num_layers} layers, the others recurrent"
    windowed = [window for window in config.windows if window]
    if not windowed:
        return "full attention"
    return f"window {max(windowed)} on {len(windowed)} of {config.num_layers} layers"


def _rope(rope: "RopeConfig") -> str:
    scaled = "" if rope.kind == "default" else f", {rope.kind} scaling by {rope.factor:g}"
    share = "" if rope.share == 1 else f" on {rope.share:.0%} of a head"
    return f"rotary{share}, theta {rope.theta:g}{scaled}"


def packed_lines(model: "Model", packed: PackedReport) -> list[str]:
    bf16 = model.bf16_bytes_per_forward
    exact, fp4 = model.bytes_per_forward, model.as_draft().bytes_per_forward
    stored = sum(packed.planes.values())
    rows = [["  precision", "bits/weight", "MB/token", "of BF16"]]
    for name, moved in (("exact", exact), ("fp4", fp4), ("plain BF16", bf16)):
        share = f"{moved / bf16:.0%}"
        rows.append([f"  {name}", f"{16 * moved / bf16:.2f}", f"{moved / 1e6:.2f}", share])
    planes = [["  plane", "bits/weight", "MB in memory", "of BF16"]]
    for name, size in [*packed.planes.items(), ("all", stored)]:
        kept = size / packed.bf16_bytes
        planes.append([f"  {name}", f"{16 * kept:.2f}", f"{size / 1e6:.2f}", f"{kept:.1%}"])
    origin = "packed when loaded"
    if model.weights.is_mapped:
        origin = f"mapped from a packed file, calibration {shown(model.weights.calibration)}"
    return [
        f"{len(packed.matrices)} matrices, {packed.nested} nested; "
        f"{packed.patches / packed.weights:.2%} of the weights are patches",
        f"{origin}, draft weights in {model.weights.draft.value}, "
        f"{16 * stored / packed.bf16_bytes:.2f} bits/weight",
        *aligned(rows),
        "",
        *aligned(planes),
    ]


def machine_lines(machine: "Machine") -> list[str]:
    from specqd import _native

    refusal = _native.amx_refusal()
    memory = _native.usable_memory()
    return [
        _native.cpu_model(),
        f"  instruction sets  {', '.join(_native.available_isas())}; chosen {machine.isa}",
        *([f"  AMX refused       {refusal}"] if refusal else []),
        f"  threads           {machine.pool.threads}",
        f"  memory left       {f'{memory / 1e9:.1f} GB' if memory >= 0 else 'unknown'}",
    ]


def numa_use(machine: "Machine") -> str:
    """`one`, `spread` or `replicate`."""
    if len(machine.pool.nodes) == 1:
        return "one"
    return "replicate" if machine.pool.replicates else "spread"


def node_lines(model: "Model") -> list[str]:
    from specqd import _native

    def gigabytes(size: int | None) -> str:
        return "unknown" if size is None else f"{size / 1e9:.1f} GB"

    rows = [["  node", "cores", "threads", "memory", "free", "GB/s", "planes"]]
    for node in NodeReport.all_of(model):
        sizes = [gigabytes(node.memory_bytes), gigabytes(node.free_bytes)]
        speed = "unknown" if node.gb_per_s is None else f"{node.gb_per_s:.1f}"
        planes = "unknown" if node.plane_bytes is None else f"{node.plane_bytes / 1e6:.2f} MB"
        counts = [f"  {node.id}", str(node.cores), str(node.threads)]
        rows.append([*counts, *sizes, speed, planes])
    lines = [f"  NUMA use          {numa_use(model.machine)}", "", *aligned(rows)]
    if unused := _native.topology().unused:
        lines.append(
            f"  nodes without cores or memory for this process: {', '.join(map(str, unused))}"
        )
    if unbound := model.machine.pool.unbound:
        lines.append(f"  the system did not bind {unbound} threads to their node")
    if not fixes_pages():
        lines.append("  the system does not fix pages to nodes (mbind), and may move them")
    return lines


def fixes_pages() -> bool:
    """Whether weights stay on the nodes where they are put; always true for one node."""
    from specqd import _native

    nodes = _native.topology().nodes
    return len(nodes) == 1 or all(_native.may_put_on(node.id) for node in nodes)


def matrix_lines(packed: PackedReport) -> list[str]:
    rows = [["matrix", "rows", "columns", "exact bits", "fp4 bits", "patches"]]
    for matrix in packed.matrices:
        first, *others = matrix.names
        name = "+".join([first, *(other.split(".")[-2] for other in others)])
        exact, fp4 = (8 * size / matrix.weights for size in (matrix.exact_bytes, matrix.fp4_bytes))
        patches = f"{matrix.patches / matrix.weights:.2%}" if matrix.is_nested else "plain"
        size = [str(matrix.rows), str(matrix.columns)]
        rows.append([name, *size, f"{exact:.2f}", f"{fp4:.2f}", patches])
    return aligned(rows)
