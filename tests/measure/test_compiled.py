"""The share of decoder blocks that ran compiled, as torch really ran them."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from harness.measure.trace import CompiledBlocks

LIMIT = 3
X = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def few_versions() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=LIMIT):
        yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        # torch treats an integer as a constant, so that each number asks for a version of its own.
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.number


class Broken(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return super().forward(x)


def share(blocks: list[Block], *, compiled: bool = True) -> float | None:
    if compiled:
        for block in blocks:
            block.compile(backend="eager")
    watch = CompiledBlocks(blocks)

    def step() -> None:
        x = X
        for block in blocks:
            x = block(x)
        x.sum().backward()

    step()
    with watch:
        step()
    return watch.share


def test_all_alike_blocks_are_compiled() -> None:
    assert share([Block(1) for _ in range(5)]) == 1


def test_blocks_beyond_the_limit_do_not_count() -> None:
    assert share([Block(number) for number in range(5)]) == pytest.approx(LIMIT / 5)


def test_the_rest_behind_a_graph_break_counts() -> None:
    assert share([Broken(number) for number in range(5)]) == pytest.approx(LIMIT / 5)


def test_plain_blocks_have_share_zero() -> None:
    assert share([Block(1)], compiled=False) == 0


def test_an_unwatched_model_has_no_share() -> None:
    assert CompiledBlocks([Block(1)]).share is None
