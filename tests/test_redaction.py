"""Secrets of every listed kind are replaced, and what only looks like one is kept."""

from __future__ import annotations

import pytest

from rankscope.redaction import REDACTED, holds_secret, redacted, redacted_command

SECRET = "s3cretValue"


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", SECRET],
        ["--api_key", SECRET],
        ["--api-key=" + SECRET],
        ["--apiKey", SECRET],
        ["-token", SECRET],
        ["--hf-token=" + SECRET],
        ["--wandb.api_key=" + SECRET],
        ["trainer.logger.api_key=" + SECRET],
        ["+db.password=" + SECRET],
        ["WANDB_API_KEY=" + SECRET],
        ["-x", "HF_TOKEN=" + SECRET],
        ["--env=AWS_SECRET_ACCESS_KEY=" + SECRET],
        ["--export=ALL,OPENAI_API_KEY=" + SECRET + ",OMP_NUM_THREADS=2"],
        ["--password", SECRET],
        ["--db-passwd=" + SECRET],
        ["https://me:" + SECRET + "@host/data"],
        ["--data", "https://host/x?a=1&token=" + SECRET + "&b=2"],
        ["s3://bucket/x?X-Amz-Signature=" + SECRET],
        ["bash", "-c", f"export HF_TOKEN={SECRET}; python train.py --token '{SECRET}' --steps 3"],
        ["bash", "-c", f'python train.py --password "{SECRET}" --steps 3'],
        ["--header", f"Authorization: Bearer {SECRET}"],
    ],
)
def test_a_secret_is_redacted(words: list[str]) -> None:
    kept = redacted_command(["python", "train.py", *words])
    assert SECRET not in " ".join(kept)
    assert REDACTED in " ".join(kept)
    assert len(kept) == len(words) + 2
    assert holds_secret(words)


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "a1B2" * 8,
        "sk-" + "a1B2" * 8,
        "sk-ant-api03-" + "a1B2" * 8,
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2" * 9,
        "glpat-" + "a1B2" * 5,
        "AKIA" + "ABCD" * 4,
        "AIza" + "a1B2" * 9,
        "xoxb-1234567890-abc",
        "nvapi-" + "a1B2" * 8,
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0",
    ],
)
def test_a_known_form_is_redacted_wherever_it_is(token: str) -> None:
    assert token not in " ".join(redacted_command(["train.py", token, f"name-{token}", f"/data/{token}/x"]))
    assert token not in redacted(f"cannot open https://{token}@github.com/a/b")


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "--nproc-per-node", "4", "train.py", "--lr", "1e-3", "--tokenizer", "gpt2"],
        ["--max-tokens", "4096", "--pad-token", "<pad>", "--eos_token=</s>", "--tokens-per-batch=8"],
        ["--key-dim=64", "--sort-key", "loss", "--author", "me", "--num-keys=3", "--patience", "3"],
        ["ssh://git@host/repo", "tcp://10.0.0.1:29500", "a@b", "OMP_NUM_THREADS=1", "--env=A=b"],
        ["bash", "-c", "python train.py --steps 3 && echo done > log"],
    ],
)
def test_ordinary_words_are_kept(words: list[str]) -> None:
    assert redacted_command(words) == words
    assert not holds_secret(words)


def test_what_surrounds_a_secret_stays() -> None:
    assert (
        redacted("https://me:pw@host/x?token=abc&b=2") == f"https://me:{REDACTED}@host/x?token={REDACTED}&b=2"
    )
    assert redacted_command(["--token", "abc", "--steps", "3"]) == ["--token", REDACTED, "--steps", "3"]
    assert redacted("HF_TOKEN='a b' python x.py") == f"HF_TOKEN='{REDACTED}' python x.py"
