"""The command `dtbench fit`: its arguments, and its answer as a table or as JSON."""

import argparse
import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dtbench.arguments import amount, count
from dtbench.fit.answer import BAND, Answer, Question, answer
from dtbench.fit.models import sizes
from dtbench.fit.speed import Speed, offers_for, read_records, speed
from dtbench.study.families import NO_SDPA
from dtbench.study.models import find_model
from dtbench.study.platforms import PRICES, load_platforms, load_prices
from harness.contract.engines import CONFIGS
from harness.contract.errors import SpecError, nearest
from harness.contract.frontier import CARDS, OUTSIDE_GIB, usable_bytes
from harness.contract.spec import Model
from harness.contract.units import GIB

LARGEST_GIB = 10_000
"""No card has more memory for long; it keeps a slip in `--memory` from being believed."""
SHOWN = {"parameters": "param", "gradients": "grad", "optimizer": "optim", "gathered": "gather", "buffers": "buffer",
         "activations": "activ", "logits": "logits"}  # fmt: skip


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Give the command its arguments."""
    command.add_argument("model", metavar="MODEL", help="name in config/models, config.json, its folder or Hub id")
    command.add_argument("--gpu", required=True, help=f"the card: {', '.join(CARDS)}; another one with --memory")
    command.add_argument("--gpus", type=count, default=1, metavar="N", help="cards per node (default: 1)")
    command.add_argument("--nodes", type=count, default=1, metavar="N", help="nodes (default: 1)")
    command.add_argument("--memory", type=amount, metavar="GIB", help="the card's total memory as torch reports it")
    command.add_argument("--sequence", type=count, default=2048, metavar="N", help="tokens a sequence (default: 2048)")
    command.add_argument("--micro-batch", type=count, default=1, metavar="N", help="sequences per GPU (default: 1)")
    command.add_argument("--config", nargs="+", metavar="NAME", help="configs to ask for (default: all)")
    command.add_argument("--arm", choices=("matched", "defaults"), default="matched", help="default: matched")
    command.add_argument("--checkpointing", action="store_true", help="recompute each decoder block in backward")
    command.add_argument("--gradients", choices=("float32", "engine"), default="float32", help="as in a study")
    command.add_argument("--tokens", type=amount, metavar="N", help="tokens to train, for hours and dollars: 10e9")
    command.add_argument("--usd-per-hour", type=amount, metavar="USD", help="price of all GPUs together, if not listed")
    command.add_argument("--records", type=Path, metavar="FOLDER", help="records for speeds (default: results)")
    command.add_argument("--json", action="store_true", help="print JSON")


def check_card(gpu: str, memory_gib: float | None) -> None:
    """Raises SpecError for a card that is not known and comes without its memory, and for too little memory."""
    if memory_gib is None and gpu not in CARDS:
        raise SpecError(
            f"--gpu: found {gpu!r}; {nearest(gpu, tuple(CARDS))}; for another card give --memory GIB as well, "
            "the total that torch.cuda.mem_get_info() reports there"
        )
    if memory_gib is not None and not OUTSIDE_GIB < memory_gib <= LARGEST_GIB:
        raise SpecError(
            f"--memory: found {memory_gib:g} GiB; expected the memory of one card, which is more than the "
            f"{OUTSIDE_GIB} GiB that CUDA itself takes and at most {LARGEST_GIB} GiB"
        )


def _usable_bytes(gpu: str, memory_gib: float | None) -> tuple[int, str]:
    """Bytes of a card that torch can allocate, and where the figure is from. Raises SpecError for an unknown card."""
    check_card(gpu, memory_gib)
    total, source = (memory_gib, "given as --memory") if memory_gib is not None else CARDS[gpu]
    return usable_bytes(total), source


def fit(options: argparse.Namespace, root: Path) -> int:
    """Answer for every config asked for and print it. Raises SpecError for a model, card or config nobody knows."""
    for name in options.config or ():
        if name not in CONFIGS:
            raise SpecError(f"--config: found {name!r}; {nearest(name, tuple(CONFIGS))}")
    if options.records is not None and not options.records.is_dir():
        raise SpecError(f"--records: found no folder {options.records}, expected one with records, such as results")
    usable, source = _usable_bytes(options.gpu, options.memory)
    found = find_model(options.model, root, "MODEL")
    attention: Literal["sdpa", "eager"] = "eager" if found["config"]["model_type"] in NO_SDPA else "sdpa"
    shape, how = sizes(found["config"], attention)
    question = Question(
        model=Model(
            **found,
            attention=attention,
            activation_checkpointing=options.checkpointing,
        ),
        shape=shape,
        source=how,
        gpu=options.gpu,
        gpus=options.gpus * options.nodes,
        usable_bytes=usable,
        sequence_length=options.sequence,
        micro_batch=options.micro_batch,
        arm=options.arm,
        gradients=options.gradients,
        nodes=options.nodes,
    )
    names = options.config or list(CONFIGS)
    answers = [one for name in names if (one := answer(question, name)) is not None]
    records = list(read_records(options.records or root / "results"))
    speeds = {one.config: speed(question, one.config, records) for one in answers}
    bill = Bill(options.tokens, _hourly(options.usd_per_hour, question, root) if options.tokens else {})
    if options.json:
        print(json.dumps(_plain(question, source, answers, speeds, bill), indent=1))
    else:
        print("\n".join(_lines(question, source, answers, speeds, bill)))
    return 0


class Bill(NamedTuple):
    """How many tokens are to be trained, and what an hour of all GPUs costs by each offer, in US dollars."""

    tokens: float | None
    usd_per_hour: dict[str, float]


def _hourly(given: float | None, question: Question, root: Path) -> dict[str, float]:
    if given is not None:
        return {"--usd-per-hour": given}
    folder = root / "config"
    prices = load_prices(folder / PRICES)
    platforms = load_platforms(folder / "platforms.yaml").values()
    offers = offers_for(question, platforms, prices)
    return {f"{price.offer or price.terms}, read on {price.date}": price.usd_per_hour for price in offers}


def _plain(
    question: Question, source: str, answers: list[Answer], speeds: dict[str, Speed | None], bill: Bill
) -> dict[str, Any]:
    def entry(one: Answer) -> dict[str, Any]:
        known = speeds[one.config]
        hours = known.hours(bill.tokens) if known and bill.tokens else None
        return one.to_json() | {
            "tokens_per_s": known.to_json() if known else None,
            "hours": hours,
            "gpu_hours": hours * question.gpus if hours is not None else None,
            "usd": {offer: hours * usd for offer, usd in bill.usd_per_hour.items()} if hours is not None else None,
        }

    return {
        "model": question.model.name,
        "parameters": question.shape.parameters,
        "active_parameters": question.shape.active_parameters,
        "parameters_from": question.source,
        "gpu": question.gpu,
        "gpus": question.gpus,
        "usable_bytes": question.usable_bytes,
        "memory_source": source,
        "sequence_length": question.sequence_length,
        "micro_batch": question.micro_batch,
        "nodes": question.nodes,
        "arm": question.arm,
        "gradients": question.gradients,
        "attention": question.model.attention,
        "activation_checkpointing": question.model.activation_checkpointing,
        "band": {"of_peak": BAND, "of_peak_beyond_state": question.doubt},
        "doubts": list(question.doubts.values()),
        "configs": [entry(one) for one in answers],
    }


def _lines(
    question: Question, source: str, answers: list[Answer], speeds: dict[str, Speed | None], bill: Bill
) -> list[str]:
    shape = question.shape
    active = "" if shape.active_parameters == shape.parameters else f" ({shape.active_parameters / 1e9:.2f}B active)"
    head = f"{'config':<22}{'peak GiB':>9} {'band':<14}{'verdict':<13}{'max mb':>7}{'min GPUs':>9}"
    head += "".join(f"{word:>7}" for word in SHOWN.values()) + f"{'host':>7}"
    checkpointing = "on" if question.model.activation_checkpointing else "off"
    lines = [
        f"{question.model.name}: {shape.parameters:,} parameters{active}, counted by {question.source}",
        f"{question.gpus} x {question.gpu}: {question.usable_bytes / GIB:.1f} GiB usable each ({source})",
        f"sequence {question.sequence_length}, micro-batch {question.micro_batch}, arm {question.arm}, gradients "
        f"{question.gradients}, attention {question.model.attention}, activation checkpointing {checkpointing}; "
        "GiB of one GPU",
        "",
        head,
    ]
    for one in answers:
        band = f"{one.low_bytes / GIB:.1f}-{one.high_bytes / GIB:.1f}"
        parts = "".join(f"{one.parts_bytes[part] / GIB:>7.1f}" for part in SHOWN)
        lines.append(
            f"{one.config:<22}{one.peak_bytes / GIB:>9.1f} {band:<14}{one.verdict:<13}{one.largest_micro_batch:>7}"
            f"{one.fewest_gpus or '-':>9}{parts}{one.host_bytes / GIB:>7.1f}"
        )
    beyond = f" and {question.doubt:.0%} of the peak without the state" if question.doubts else ""
    lines += ["", f"Band: {BAND:.0%} of the peak{beyond}, to both sides."]
    lines += [f"  wider because {why}" for why in question.doubts.values()]
    return lines + _speed_lines(question, speeds, bill)


def _speed_lines(question: Question, speeds: dict[str, Speed | None], bill: Bill) -> list[str]:
    known = {config: found for config, found in speeds.items() if found}
    if not known:
        return ["Speed: no stored record of such a run, so none is given."]
    lines = ["Tokens per second, all GPUs, from records of such runs:"]
    for config, found in known.items():
        line = f"  {config:<22}{found.median:>10,.0f} ({found.low:,.0f} to {found.high:,.0f}, {found.runs} runs)"
        if bill.tokens:
            hours = found.hours(bill.tokens)
            line += f"; {hours:,.1f} h, {hours * question.gpus:,.1f} GPU-hours"
            line += "".join(f", ${hours * usd:,.0f} ({offer})" for offer, usd in bill.usd_per_hour.items())
        lines.append(line)
    if bill.tokens and not bill.usd_per_hour:
        lines.append("Dollars: no offer in config/platforms.yaml is of such cards; give --usd-per-hour.")
    return lines
