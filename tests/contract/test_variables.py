"""Variables that a spec may carry; which names and values are secrets is tests/supervisor/test_environment.py's."""

import pytest

from harness.contract.errors import SpecError
from harness.contract.variables import check_variables, refuse_secrets


def test_what_a_process_can_be_given_passes() -> None:
    check_variables({"A": "", "with space": "a=b\nc", "\u00fc": "\u00fc"})


def test_a_refused_value_is_never_shown() -> None:
    value = "hf_" + 30 * "x"
    with pytest.raises(SpecError) as refused:
        refuse_secrets({"PLAIN": value})
    assert value not in str(refused.value)
    with pytest.raises(SpecError) as refused:
        check_variables({"PLAIN": value + "\0"})
    assert value not in str(refused.value)
