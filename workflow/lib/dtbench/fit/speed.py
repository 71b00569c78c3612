"""Tokens per second and dollars of a fitting config, from stored records of like runs; nothing where there are none."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dtbench.fit.answer import Question
from dtbench.study.platforms import PlatformEntry, Price, offered
from harness.contract.errors import SpecError
from harness.contract.record import Record, read_record

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Tokens per second of all ranks over the like runs that were found."""

    runs: int
    low: float
    median: float
    high: float

    def hours(self, tokens: float) -> float:
        """Hours that so many tokens take at the median speed."""
        return tokens / self.median / SECONDS_PER_HOUR

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def read_records(folder: Path) -> Iterator[Record]:
    """Records of finished runs below a folder; a file that is none is skipped."""
    for path in sorted(folder.rglob("record.json")):
        try:
            record = read_record(path)
        except SpecError:
            continue
        timed = record.measured is not None and record.measured.tokens_per_s and not record.spec.protocol.ladder
        if record.outcome == "ok" and timed:
            yield record


def speed(question: Question, config: str, records: Iterable[Record]) -> Speed | None:
    """Speed of runs alike in card, ranks, model, data, arm and settings; None without any."""
    asked = question.spec(config)
    found = sorted(
        record.measured.tokens_per_s
        for record in records
        if record.measured and record.measured.tokens_per_s and _like(record, asked)
    )
    return Speed(runs=len(found), low=found[0], median=found[len(found) // 2], high=found[-1]) if found else None


def offers_for(question: Question, platforms: Iterable[PlatformEntry], prices: dict[str, Price]) -> list[Price]:
    """What the asked cards cost together, by the offers of each platform of the same cards and nodes."""
    asked = (question.gpu, question.gpus, question.nodes)
    found = [offered(p, prices) for p in platforms if (p.accelerator, p.world_size, p.nodes) == asked]
    return list({price.offer or price.terms: price for each in found for price in each}.values())


def _like(record: Record, asked: Any) -> bool:
    ran = record.spec
    return (
        record.source is None
        and ran.platform.accelerator == asked.platform.accelerator
        and (ran.platform.world_size, ran.platform.nodes) == (asked.platform.world_size, asked.platform.nodes)
        and ran.platform.interconnect in ("nvlink", "none")
        and ran.model.config == asked.model.config
        and ran.model.activation_checkpointing == asked.model.activation_checkpointing
        and (ran.data.sequence_length, ran.data.micro_batch, ran.data.gradient_accumulation)
        == (asked.data.sequence_length, asked.data.micro_batch, asked.data.gradient_accumulation)
        and ran.identity.arm == asked.identity.arm
        and ran.numerics == asked.numerics
        and ran.engine == asked.engine
    )
