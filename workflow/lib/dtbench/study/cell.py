"""A cell of a study and the runs made from it."""

from dataclasses import dataclass, field

from msgspec import structs

from dtbench.study.definition import Exclusion
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
        """What a step trains on, and in an arm of equal numerics how: only cells of the same terms are compared."""
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
