"""A cell of a study, the runs made from it, and the order in which the runs of all cells start.

References start first, the most wanted next, the cells of a ratio side by side. Speeds drift within a machine and
differ between machines, so a ratio comes from runs that followed each other. Their order alternates from repeat to
repeat (ABBA): a drift that helps the second run then helps each config as often.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from dtbench.study.definition import HEADLINE_REPEATS, Exclusion, Study
from harness.contract.engines import pairs_apart_by
from harness.contract.errors import SpecError
from harness.contract.spec import RunSpec

Group = tuple[RunSpec, ...]
"""Runs of one repeat that start one after the other on one machine; most cells are alone in theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One square of the result table: platform x config x arm."""

    platform: str
    config: str
    arm: str
    spec: RunSpec | None
    """The spec of repeat 1, attempt 1; None for a cell that is not run."""
    exclusion: Exclusion | None = None
    base: str = ""
    """The known config that it is or derives from."""
    departs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Section of the spec -> what overrides change in it, in words."""

    @property
    def terms(self) -> tuple[str, ...]:
        """What a step trains on and, in an arm of equal numerics, with which numerics. Only cells with equal terms are
        compared."""
        if self.spec is None:
            return ()
        data = self.spec.data
        numerics = () if self.arm == "defaults" else self.departs["numerics"] + self.departs["optimizer"]
        model = [word for word in self.departs["model"] if not word.startswith("model ")]
        return (
            ", ".join([self.spec.model.name, *model]),
            f"sequence {data.sequence_length}",
            f"micro-batch {data.micro_batch}",
            f"gradient accumulation {data.gradient_accumulation}",
            ", ".join(numerics) or "the arm's numerics",
        )

    @property
    def peculiar(self) -> str:
        """All of `departs` in one line: the config's name need not say it."""
        return ", ".join(word for words in self.departs.values() for word in words)


def at(spec: RunSpec, *, repeat: int | None = None, attempt: int | None = None) -> RunSpec:
    """The same spec at another repeat or attempt."""
    i = spec.identity
    identity = structs.replace(i, repeat=repeat or i.repeat, attempt=attempt or i.attempt)
    return structs.replace(spec, identity=identity)


def ordered(study: Study, cells: Sequence[Cell]) -> tuple[Group, ...]:
    """References, then the most wanted; then block by block (a repeat on a platform), in random order in each.

    Raises SpecError for `pairs` whose cells do not train the same.
    """
    ranked = []
    for place, platform in enumerate(study.platforms):
        together = _together(study, [cell for cell in cells if cell.platform == platform and cell.spec])
        for repeat in range(1, 1 + max(study.repeats, HEADLINE_REPEATS)):
            block = [unit for unit in together if repeat <= _repeats(study, unit)]
            random.Random(f"{study.seed}/{platform}/{repeat}").shuffle(block)
            for position, unit in enumerate(block):
                # The reference runs come first, because the parity gate compares the others with them.
                first = repeat == 1 and any(_is_reference(cell) for cell in unit)
                rank = min(_rank(study, cell) for cell in unit)
                turned = unit if repeat % 2 else unit[::-1]
                group = tuple(at(cell.spec, repeat=repeat) for cell in turned if cell.spec)
                ranked.append(((not first, rank, repeat, place, position), group))
    ranked.sort(key=lambda item: item[0])
    return tuple(group for _, group in ranked)


def _repeats(study: Study, unit: Sequence[Cell]) -> int:
    """Runs of each cell of a unit: a ratio that the study names rests on three pairs at least."""
    named = any(cell.config in pair for cell in unit for pair in study.pairs)
    return max(study.repeats, HEADLINE_REPEATS) if named else study.repeats


def _together(study: Study, cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells of one platform in units: those of a ratio in one, with a reference ahead; the rest each by itself."""
    units: list[list[Cell]] = []
    for arm in study.arms:
        rest = [cell for cell in cells if cell.arm == arm]
        for number, names in enumerate(study.pairs):
            unit = [cell for name in names for cell in rest if cell.config == name]
            if len({cell.terms for cell in unit}) > 1:
                raise SpecError(f"pairs[{number}]: {', '.join(names)} do not train the same, so no ratio compares them")
            units.append(unit)
            rest = [cell for cell in rest if cell.config not in names]
        units += _by_engine(rest)
    return [sorted(unit, key=lambda cell: not _is_reference(cell)) for unit in units if unit]


def _by_engine(cells: list[Cell]) -> Iterator[list[Cell]]:
    """Units of the same sharding by two engines, as the report compares them. A cell without such a partner is
    alone."""
    rest = list(cells)
    while rest:
        cell = rest.pop(0)
        unit = [cell, *(other for other in rest if _same_sharding(cell, other))]
        rest = [other for other in rest if other not in unit]
        yield unit


def _same_sharding(one: Cell, other: Cell) -> bool:
    """Whether two cells are the same sharding by two engines, as given or as variants of the same suffix."""
    bases = {(a.name, b.name) for a, b in pairs_apart_by("engine") if a.shards != "nothing"}
    known = (one.base, other.base) in bases or (other.base, one.base) in bases
    same = one.config.removeprefix(one.base) == other.config.removeprefix(other.base)
    return known and same and one.terms == other.terms


def _is_reference(cell: Cell) -> bool:
    return cell.spec is not None and cell.spec.identity.reference


def _rank(study: Study, cell: Cell) -> int:
    wanted = (i for i, p in enumerate(study.order) if p.match(cell.platform, cell.config, cell.arm))
    return next(wanted, len(study.order))
