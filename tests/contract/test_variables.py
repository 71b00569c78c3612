"""Variables that a spec may carry, and the secrets that neither a spec nor a shared log may show."""

import pytest

from harness.contract.errors import SpecError
from harness.contract.variables import SECRET_VALUES, check_variables, refuse_secrets
from harness.diagnosis.redact import Redactor


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


EXAMPLES = {
    "Hugging Face": "hf_" + "a" * 12,
    "GitHub": "ghp_" + "a" * 24,
    "GitHub, fine-grained": "github_pat_" + "a" * 24,
    "GitLab": "glpat-" + "a" * 12,
    "OpenAI": "sk-" + "a" * 24,
    "Slack": "xoxr-" + "a" * 12,
    "AWS access key": "AKIA" + "A" * 16,
    "Google API key": "AIza" + "a" * 32,
    "Google OAuth": "ya29." + "a" * 24,
    "JSON web token": "eyJ" + "a" * 12 + "." + "b" * 12 + "." + "c" * 12,
    "40 hex digits, as of Weights & Biases": "0123456789" * 4,
    "private key": "-----BEGIN RSA PRIVATE KEY-----\\nMIIabc",
}


@pytest.mark.parametrize("issuer", SECRET_VALUES)
def test_specs_refuse_and_logs_redact_each_secret(issuer: str) -> None:
    secret = EXAMPLES[issuer]
    for value in (secret, f"x={secret}", f"a {secret}, b"):
        with pytest.raises(SpecError, match="looks like a secret"):
            refuse_secrets({"PLAIN": value})
        assert secret not in Redactor().line(value)


@pytest.mark.parametrize(
    "name", ["AWS_SECRET_ACCESS_KEY", "MY_TOKEN", "DB_PASSWORD", "HTTP_AUTH", "WANDB_API_KEY", "GITHUB_PAT", "X_COOKIE"]
)
def test_specs_refuse_and_logs_redact_secret_names(name: str) -> None:
    with pytest.raises(SpecError, match="looks like a secret"):
        refuse_secrets({name: "plain-value"})
    assert "plain-value" not in Redactor().line(f"{name}=plain-value")


def test_a_password_in_a_url_is_a_secret() -> None:
    value = "https://jane:wonder@example.org/x"
    with pytest.raises(SpecError, match="looks like a secret"):
        refuse_secrets({"PLAIN": value})
    assert "wonder" not in Redactor().line(value)


@pytest.mark.parametrize("line", ["TOKENIZERS_PARALLELISM=false", "OMP_NUM_THREADS=4", "sha256=" + "0a" * 32])
def test_ordinary_settings_are_no_secrets(line: str) -> None:
    name, _, value = line.partition("=")
    refuse_secrets({name: value})
    assert Redactor().line(line) == line
