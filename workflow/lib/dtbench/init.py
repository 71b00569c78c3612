"""`dtbench init`: a commented study of the configs worth measuring for a model on given cards, by the memory ledger."""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from dtbench.arguments import amount, count
from dtbench.fit.answer import Answer, Question, answer
from dtbench.fit.command import check_card
from dtbench.fit.models import sizes
from dtbench.study.definition import parse_study
from dtbench.study.families import check_families, choose_attention, say_parameters
from dtbench.study.files import is_file, is_folder
from dtbench.study.here import this_machine
from dtbench.study.hub import is_hub_id
from dtbench.study.models import find_model
from dtbench.study.platforms import PlatformEntry, load_platforms
from harness.contract.engines import CONFIGS
from harness.contract.errors import SpecError
from harness.contract.files import write_atomically
from harness.contract.frontier import CARDS, usable_bytes
from harness.contract.spec import Model
from harness.contract.units import GIB
from harness.measure.host import memory_gib

LINKED = ("a100-40gb", "a100-80gb", "h100-80gb", "h200", "b200")
"""Cards that hosts of several usually link by NVLink."""
MOST_MICRO_BATCH = 8
"""A larger one takes longer to measure and says little more about the engines."""
MOST_CPU_PARAMETERS = 50_000_000
HOST_OVER_STATE = 1.27, 1.38
"""Resident host memory of an offloading rank over its state there: least and most in the stored H200 records."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Give the command its arguments."""
    command.add_argument("model", metavar="MODEL", help="name in config/models, config.json, its folder or Hub id")
    command.add_argument("--gpu", help=f"the card, instead of this machine's: {', '.join(CARDS)}")
    command.add_argument("--gpus", type=count, default=1, metavar="N", help="how many of them (default: 1)")
    command.add_argument("--memory", type=amount, metavar="GIB", help="total memory of a card that is not in that list")
    command.add_argument("--sequence", type=count, metavar="N", help="tokens a sequence (default: 2048, or 64 on CPUs)")
    command.add_argument("--out", type=Path, default=Path("study.yaml"), help="the study (default: study.yaml)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What goes into the study."""

    measured: dict[str, str]
    """Config -> what the ledger says of it."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Config -> why not."""
    reference: str
    micro_batch: int = 1
    checkpointing: bool = False


def init(options: argparse.Namespace, root: Path) -> int:
    """Write the study and say how to go on. Raises SpecError when nothing fits, or for an unknown model or card."""
    if options.out.exists():
        raise SpecError(f"--out: {options.out} exists already; give another name or remove it")
    _check_name(options.out)
    found = find_model(options.model, root, "MODEL")
    model = choose_attention(Model(**found, attention="auto"))  # type: ignore[arg-type]
    check_families([model])
    shape, how = sizes(model.config)
    platform = _platform(options)
    shipped = _shipped(platform, load_platforms(root / "config" / "platforms.yaml"))
    sequence = options.sequence or _sequence(platform, model.config)
    if platform["device"] == "cpu":
        if shape.parameters > MOST_CPU_PARAMETERS:
            raise SpecError(
                f"init: found no GPU on this machine, and {model.name} has {say_parameters(shape.parameters)} "
                f"parameters; give the cards that you mean, for example `--gpu h100-80gb --gpus 8` ({', '.join(CARDS)})"
            )
        choice = _all_configs()
    else:
        question = Question(
            model=model,
            shape=shape,
            source=how,
            gpu=platform["accelerator"],
            gpus=platform["world_size"],
            usable_bytes=_usable(options, platform["accelerator"]),
            sequence_length=sequence,
            micro_batch=1,
        )
        offered = shipped[1].memory_gib if shipped else None
        choice = _choose(question, memory_gib() if options.gpu is None else offered)
    active = f", {say_parameters(shape.active_parameters)} active" if shape.experts else ""
    facts = f"{model.name} ({say_parameters(shape.parameters)} parameters{active}; attention {model.attention})"
    listed = shipped[0] if shipped else _described(platform)
    text = _text(facts, _model_line(options.model), listed, platform, choice, sequence)
    write_atomically(options.out, text)
    print(f"wrote {options.out}: {facts}; {len(choice.measured)} configs at micro-batch {choice.micro_batch}")
    print(f"next: dtbench check {options.out}\n      dtbench start {options.out}")
    return 0


def _check_name(out: Path) -> None:
    """Raises SpecError for a file that `dtbench start` would refuse by its name."""
    if out.suffix not in (".yaml", ".yml"):
        raise SpecError(f"--out: found {out}, expected a name that ends in .yaml")
    try:
        parse_study({"platforms": ["here"]}, out.stem.lower())
    except SpecError as error:
        raise SpecError(f"--out: the file's name names the study; {error}") from None


def _platform(options: argparse.Namespace) -> dict[str, Any]:
    """The cards that were asked for, or those of this machine, as a platform entry without a name."""
    if options.gpu is None:
        return this_machine()
    check_card(options.gpu, options.memory)
    link = "nvlink" if options.gpu in LINKED else "pcie"
    return {
        "device": "cuda",
        "world_size": options.gpus,
        "accelerator": options.gpu,
        "interconnect": link if options.gpus > 1 else "none",
        "note": "",
    }


def _sequence(platform: dict[str, Any], config: dict[str, Any]) -> int:
    longest = config.get("max_position_embeddings")
    usual = 64 if platform["device"] == "cpu" else 2048
    return min(usual, longest) if isinstance(longest, int) and longest > 0 else usual


def _usable(options: argparse.Namespace, accelerator: str) -> int:
    if options.memory is not None:
        return usable_bytes(options.memory)
    if accelerator in CARDS:
        return usable_bytes(CARDS[accelerator][0])
    raise SpecError(
        f"init: found {accelerator}, of which only the memory's size on paper is known; give `--memory GIB`, the total "
        "that torch.cuda.mem_get_info() reports"
    )


def _all_configs() -> Choice:
    """Without a GPU there is no memory to predict: everything but what needs several nodes."""
    names = [name for name, config in CONFIGS.items() if config.usual]
    return Choice(measured=dict.fromkeys(names, ""), reference="ddp")


def _choose(question: Question, host_gib: float | None) -> Choice:
    """Configs that fit or nearly fit; those that offload only where fewer than two others do.

    `host_gib`: memory of the host, None where it is unknown.
    Raises SpecError when none fits, not even with activation checkpointing.
    """
    for checkpointing in (False, True):
        model = structs.replace(question.model, activation_checkpointing=checkpointing)
        asked = replace(question, model=model)
        names = [name for name, config in CONFIGS.items() if config.usual]
        answers = [one for name in names if (one := answer(asked, name)) is not None]
        crowded = {one.config: said for one in answers if (said := _crowds_host(one, question.gpus, host_gib))}
        fitting = [one for one in answers if one.verdict != "does not fit" and one.config not in crowded]
        on_card = [one for one in fitting if not CONFIGS[one.config].offloads]
        measured = on_card if len(on_card) > 1 else fitting
        sure = [one.config for one in measured if one.verdict == "fits"]
        if sure:
            return Choice(
                measured={one.config: _what_fits(one) for one in measured},
                left_out={
                    one.config: crowded.get(one.config) or _why_not(one) for one in answers if one not in measured
                },
                reference="ddp" if "ddp" in sure else sure[0],
                micro_batch=_micro_batch(measured),
                checkpointing=checkpointing,
            )
    fewest = {one.config: one.fewest_gpus for one in answers if one.fewest_gpus and one.config not in crowded}
    hint = ", ".join(f"{config} on {gpus}" for config, gpus in sorted(fewest.items(), key=lambda item: item[1]))
    raise SpecError(
        f"init: no config of {question.model.name} fits on {question.gpus} x {question.gpu} at sequence "
        f"{question.sequence_length}, not even with activation checkpointing; by the ledger they fit with more cards: "
        f"{hint or 'none of them, whatever their number'}{''.join(f'; {name}: {why}' for name, why in crowded.items())}"
    )


def _micro_batch(measured: Sequence[Answer]) -> int:
    """The largest that all configs that surely fit can train with, so that they can be compared."""
    sure = [one.largest_micro_batch for one in measured if one.largest_micro_batch]
    return min([MOST_MICRO_BATCH, *sure])


def _what_fits(one: Answer) -> str:
    peak = f"{one.low_bytes / GIB:.1f} to {one.high_bytes / GIB:.1f} GiB at micro-batch 1"
    most = one.largest_micro_batch
    least_gib, most_gib = _host_gib(one)
    host = f"; {least_gib:.0f} to {most_gib:.0f} GiB of host memory for each GPU" if one.host_bytes else ""
    return f"{peak}{host}; largest micro-batch {most}" if most else f"{peak}{host}, which is close: only a run can tell"


def _crowds_host(one: Answer, gpus: int, host_gib: float | None) -> str:
    """Why an offloading config does not fit the host's memory; empty where it fits, or where that is unknown."""
    least_gib, most_gib = _host_gib(one)
    if host_gib is None or least_gib * gpus <= host_gib:
        return ""
    need = f"{least_gib * gpus:.0f} to {most_gib * gpus:.0f} GiB"
    return f"does not fit host memory: {need} predicted for all GPUs, {host_gib:.0f} GiB found"


def _host_gib(one: Answer) -> tuple[float, float]:
    """Least and most host memory that a rank is expected to hold, in GiB."""
    least, most = (one.host_bytes * factor / GIB for factor in HOST_OVER_STATE)
    return least, most


def _why_not(one: Answer) -> str:
    if one.verdict != "does not fit":
        return f"fits too ({one.peak_bytes / GIB:.1f} GiB), but offload costs speed where others fit without"
    return f"does not fit: {one.low_bytes / GIB:.1f} to {one.high_bytes / GIB:.1f} GiB predicted"


def _shipped(platform: dict[str, Any], known: dict[str, PlatformEntry]) -> tuple[str, PlatformEntry] | None:
    """The shipped platform that is the same, with its name."""
    keys = ("device", "world_size", "accelerator", "interconnect")
    for name, entry in known.items():
        alike = all(getattr(entry, key) == platform[key] for key in keys)
        if alike and entry.memory_cap_gib is None and not entry.environment and entry.nodes == 1:
            return name, entry
    return None


def _described(platform: dict[str, Any]) -> dict[str, Any]:
    """A mapping for the study."""
    card = re.sub(r"[^a-z0-9._-]+", "-", platform["accelerator"].lower())[:40].strip("._-")
    name = f"my-{card or 'card'}-x{platform['world_size']}"
    return {"name": name} | {key: value for key, value in platform.items() if value != ""}


def _model_line(word: str) -> str:
    if is_file(Path(word)) or is_folder(Path(word)):
        return f"model: {{config: {_quoted(str(Path(word).resolve()))}}}"
    return f"model: {{config: {word}}}" if is_hub_id(word) else f"model: {{name: {word}}}"


def _quoted(text: str) -> str:
    """A text as YAML takes it, whatever is in it: JSON's escapes are YAML's."""
    return json.dumps(text, ensure_ascii=False)


def _text(
    facts: str, model_line: str, listed: str | dict[str, Any], platform: dict[str, Any], choice: Choice, sequence: int
) -> str:
    cards = f"{platform['world_size']} x {platform['accelerator']}"
    lines = [f"# {facts} on {cards}, written by `dtbench init`.", "# Every key: workflow/schemas/study.schema.json."]
    if isinstance(listed, str):
        lines.append(f"platforms: [{listed}]")
    else:
        lines += ["# Check the interconnect: nvlink, pcie, host-memory; none of one GPU.", "platforms:"]
        plain = ("name", "device", "world_size", "interconnect")
        for index, (key, value) in enumerate(listed.items()):
            lines.append(f"  {'-' if index == 0 else ' '} {key}: {value if key in plain else _quoted(value)}")
    if choice.checkpointing:
        lines.append("# Nothing fits without activation checkpointing.")
        model_line = f"{model_line[:-1]}, activation_checkpointing: true}}"
    lines += [model_line, f"data: {{sequence_length: {sequence}, micro_batch: {choice.micro_batch}}}", "configs:"]
    lines += [f"  - {name:<24}# {said}" if said else f"  - {name}" for name, said in choice.measured.items()]
    lines += [f"  # - {name:<22}# {why}" for name, why in choice.left_out.items()]
    lines += [
        "# matched: equal numerics for all engines; defaults: each as shipped. tuned would search each one's settings.",
        "arms: [matched, defaults]",
        "repeats: 3",
        "# What the parity gate compares the others' losses with.",
        f"reference: {choice.reference}",
    ]
    if platform["device"] == "cpu":
        lines += ["protocol: {preset: quick}", "# CPU speeds say nothing about GPUs."]
    return "\n".join(lines) + "\n"
