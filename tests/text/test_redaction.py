"""Secrets of every listed spelling are replaced, what only looks like one is kept, and a long text costs no more than
its length."""

from __future__ import annotations

import shlex
import time

import pytest

from rankscope.text.redaction import REDACTED, redacted, redacted_command, secrets_of

SECRET = "s3cretValue"
HEX = "0123456789abcdef0123456789abcdef01234567"

SPELLINGS = [
    # Options
    ["--api-key", SECRET],
    ["--api_key", SECRET],
    [f"--api-key={SECRET}"],
    ["--apiKey", SECRET],
    ["-token", SECRET],
    [f"--hf-token={SECRET}"],
    ["--password", SECRET],
    [f"--password={SECRET},with;all&kinds of|characters {SECRET}"],
    [f"--db-passwd={SECRET}"],
    ["--pw", SECRET],
    [f"--pw={SECRET}"],
    ["--pass", SECRET],
    ["--auth", SECRET],
    ["--api-keys", SECRET],
    ["--webhook-url", SECRET],
    [f"--extra=--token {SECRET}"],
    ["--extra=--token", SECRET],
    ["--extra", f"--steps 3 --token {SECRET}"],
    ["--args", f'["--token", "{SECRET}", "--steps", "3"]'],
    ["--args", f"['--token','{SECRET}']"],
    # Settings and variables
    [f"--wandb.api_key={SECRET}"],
    [f"trainer.logger.api_key={SECRET}"],
    [f"+db.password={SECRET}"],
    [f"WANDB_API_KEY={SECRET}"],
    [f"TOKENS={SECRET}"],
    [f"HF_TOKEN_2={SECRET}"],
    [f"PGPASSWORD={SECRET}"],
    [f"PW={SECRET}"],
    ["-x", f"HF_TOKEN={SECRET}"],
    [f"-eHF_TOKEN={SECRET}"],
    [f"--env=AWS_SECRET_ACCESS_KEY={SECRET}"],
    [f"--export=ALL,OPENAI_API_KEY={SECRET},OMP_NUM_THREADS=2"],
    [f"--from-literal=password={SECRET}"],
    [f"Server=db;User=me;Password={SECRET};Timeout=3"],
    [f"DefaultEndpointsProtocol=https;AccountKey={SECRET}"],
    ["-c", f'import os; os.environ["HF_TOKEN"] = "{SECRET}"'],
    ["-c", f"login(token='{SECRET}', new_session=False)"],
    # JSON and YAML
    ["--config", f'{{"api_key": "{SECRET}", "lr": 0.1}}'],
    ["--config", f'{{"api_key":"{SECRET}"}}'],
    ["--config", f"{{'api_key': '{SECRET}'}}"],
    ["--config", f'{{\\"api_key\\": \\"{SECRET}\\"}}'],
    ["--config", f'{{"wandb": {{"token": "a\\"{SECRET}"}}}}'],
    ["--config", f"{{api_key: {SECRET}, lr: 0.1}}"],
    ["--config", f"lr: 0.1\napi_key: {SECRET}\n"],
    ["--config", f"auth:\n  - password: '{SECRET}'"],
    ["--config", f"password: |\n  {SECRET}\nlr: 0.1"],
    ['{"api_key":', f'"{SECRET}"}}'],
    # Headers
    ["--header", f"Authorization: Bearer {SECRET}"],
    ["-H", f"Authorization: {SECRET}"],
    ["-H", f"Authorization: token {SECRET}"],
    ["-H", f"X-Api-Key: {SECRET}"],
    ["-H", f"X-Api-Key:{SECRET}"],
    [f"--header=X-Auth-Token: {SECRET}"],
    ["-H", f"Cookie: lang=de; sid={SECRET}"],
    ["-H", "Authorization:", "Bearer", SECRET],
    ["X-Api-Key:", SECRET],
    # Short options
    ["-p", SECRET],
    ["mysql", "-u", "root", "-p", SECRET],
    ["sshpass", "-p", SECRET, "ssh", "-p", "2222", "host"],
    ["docker", "login", "-u", "me", "-p", SECRET],
    ["curl", "-u", f"me:{SECRET}", "https://host"],
    ["srun", "/usr/bin/curl", "-u", f"me:{SECRET}"],
    ["curl", "--user", f"me:{SECRET}"],
    [f"--proxy-user=me:{SECRET}"],
    ["-u", f"me:{SECRET}"],
    ["wandb", "login", HEX],
    ["wandb", "login", "--relogin", HEX],
    # URLs
    [f"https://me:{SECRET}@host/data"],
    [f"https://me:{SECRET}@{SECRET}@host/data"],
    [f"-fhttps://me:{SECRET}@host/data"],
    ["--data", f"https://host/x?a=1&token={SECRET}&b=2"],
    [f"s3://bucket/x?X-Amz-Signature={SECRET}"],
    [f"git+https://{SECRET * 2}@host/repo"],
    [f"https://hooks.slack.com/services/T00/B00/{SECRET}"],
    [f"https://discord.com/api/webhooks/123/{SECRET}"],
    [f"https://org.webhook.office.com/webhookb2/{SECRET}/IncomingWebhook/1"],
    [f"https://api.telegram.org/bot123:{SECRET}/sendMessage"],
    [f"SLACK_WEBHOOK={SECRET}"],
    # In the text of a shell
    ["bash", "-c", f"export HF_TOKEN={SECRET}; python train.py --token '{SECRET}' --steps 3"],
    ["bash", "-c", f'python train.py --password "{SECRET}" --steps 3'],
    ["bash", "-c", f"curl -H 'X-Api-Key: {SECRET}' https://host; mysql -p {SECRET} db"],
    ["bash", "-c", f"""ssh host "curl -u 'me:{SECRET}' https://host" | tee log"""],
    ["bash", "-c", f"python train.py --token \\\n  {SECRET}"],
    ["bash", "-c", shlex.join(["train.py", "--password", f"it's {SECRET}", "--steps", "3"])],
    ["bash", "-c", shlex.join(["ssh", "host", shlex.join(["curl", "-H", f"X-Api-Key: {SECRET}"])])],
    # Other ways
    ["--api_keys", "x", SECRET],
    ["bash", "-c", f"train.py --api-keys x {SECRET} --steps 3"],
    ["--opts", "SOLVER.LR", "0.1", "LOGGER.API_KEY", SECRET],
    ["--xml", f"<config><steps>3</steps><db:password kind='a'>{SECRET}</db:password></config>"],
    ["--data", f"user%3Dme%26password%3D{SECRET}%26b%3d2"],
    ["aws", "configure", "set", "aws_secret_access_key", SECRET],
    ["npm", "config", "set", "//registry/:_authToken", SECRET],
    ["--pass-phrase", SECRET],
    ["--token", f"-{SECRET}"],
    [f"https://host/api?key={SECRET}"],
    [f"https://host/callback?state=1&code={SECRET}#x"],
]


@pytest.mark.parametrize("words", SPELLINGS, ids=" ".join)
def test_a_secret_is_redacted(words: list[str]) -> None:
    command = ["python", "train.py", *words]
    recorded = redacted_command(command)
    assert SECRET not in " ".join(recorded) and HEX not in recorded
    assert REDACTED in " ".join(recorded)
    assert len(recorded) == len(command)
    assert any(SECRET in secret or secret == HEX for secret in secrets_of(command))
    assert redacted_command(recorded) == recorded


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
        "wandb_v1_" + "a1B2" * 8,
        "npm_" + "a1B2" * 9,
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0",
        "lin_api_" + "a1B2" * 10,
        "shpat_" + "a1b2" * 8,
        "sq0atp-" + "a1B_" * 6,
        "EAAA" + "a1B-" * 10,
        "AGE-SECRET-KEY-1" + "QPZR" * 14 + "Y9",
        "ATATT3" + "a1B_" * 10 + "=A1B2C3D4",
        "ntn_" + "1234" * 3 + "a1B2" * 8,
        "tskey-auth-" + "a1B2" * 4 + "-" + "a1B2" * 8,
        "figd_" + "a1B-" + "a1B2" * 9,
        "PMAK-" + "a1b2" * 6 + "-" + "a1b2" * 8,
        "cfut_" + "a1B2" * 12,
        "v1.0-" + "a1b2" * 6 + "-" + "a1b2" * 36,
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
        [
            "--train-tokens",
            "300B",
            "TOKENS=4096",
            "--tokens=1e9",
            "--special-tokens",
            "a,b",
            "--mask-token",
            "[MASK]",
        ],
        [
            "--passes",
            "3",
            "--pass",
            "2",
            "--bypass",
            "x",
            "--compass=n",
            "--use-auth=true",
            '{"token": null}',
        ],
        [
            "--key-dim=64",
            "--sort-key",
            "loss",
            "--author",
            "me",
            "--num-keys=3",
            "--patience",
            "3",
            "--hotkey",
            "a",
        ],
        [
            "ssh://git@host/repo",
            "tcp://10.0.0.1:29500",
            "a@b",
            "OMP_NUM_THREADS=1",
            "--env=A=b",
            "git@host:a/b",
        ],
        ["bash", "-c", "python train.py --steps 3 && echo done > log"],
        [
            "srun",
            "-p",
            "gpu",
            "-n",
            "8",
            "python",
            "train.py",
            "-p",
            "8080",
            "-p",
            "0.1",
            "-p",
            "out/x",
            "-p",
            "bf16",
        ],
        [
            "docker",
            "run",
            "-p",
            "8080:80",
            "-u",
            "me:users",
            "image:1@sha256:0123",
            "apptainer",
            "--pwd",
            "/work",
        ],
        [
            "mkdir",
            "-p",
            "out",
            "ssh",
            "-p",
            "2222",
            "host",
            "-precision",
            "bf16",
            "--user",
            "me",
            "-u",
            "train.py",
        ],
        [
            "--config",
            '{"lr": 0.1, "tokenizer": "gpt2", "max_tokens": 4096, "pad_token": "<pad>", "key": "loss"}',
        ],
        [
            "--config",
            "lr: 0.1\ntokenizer: gpt2\nsteps: 3",
            "--revision",
            HEX,
            "std::token::next",
            "--name",
            "Basic transformer",
        ],
        [
            "hf_hub_download_with_retry",
            "npm_config_registry",
            "hf_llama3_checkpoint_step1000",
            "-x",
            "HF_TOKEN",
            "python",
            "model.tokens",
            "v1.0-rc1-20261119",
            "50%20done",
            "--no-token",
            "-precision",
            "x?key=1",
            "glove-embeddings-300d",
            "sk-learn",
            "--signal",
            "USR2",
            "--rdzv-endpoint",
            "a:1",
        ],
    ],
    ids=" ".join,
)
def test_ordinary_words_are_kept(words: list[str]) -> None:
    assert redacted_command(words) == words
    assert secrets_of(words) == []


def test_what_surrounds_a_secret_stays() -> None:
    assert (
        redacted("https://me:pw@host/x?token=abc&b=2") == f"https://me:{REDACTED}@host/x?token={REDACTED}&b=2"
    )
    assert redacted_command(["--token", "abc", "--steps", "3"]) == ["--token", REDACTED, "--steps", "3"]
    assert redacted("HF_TOKEN='a b' python x.py") == f"HF_TOKEN='{REDACTED}' python x.py"
    assert redacted('{"api_key": "a b", "lr": 0.1}') == f'{{"api_key": "{REDACTED}", "lr": 0.1}}'
    assert redacted("curl -u me:pw -H 'X-Api-Key: abc' https://host") == (
        f"curl -u me:{REDACTED} -H 'X-Api-Key: {REDACTED}' https://host"
    )
    assert redacted_command(["bash", "-c", "TOKEN=abc python x.py --steps 3"])[2] == (
        f"TOKEN={REDACTED} python x.py --steps 3"
    )
    assert redacted("--export=ALL,TOKEN=abc,B=2") == f"--export=ALL,TOKEN={REDACTED},B=2"


@pytest.mark.parametrize(
    "piece",
    [
        *("x", "-", "a.", "a+", "sk-", "%3D", "<a>", "<a", "'", "--as x ", "A.a ", "set a "),
        *("eyJ", "eyJ-", "a=", "token=", "pwd=/", "user=a:", "token:", "a: ", "a://", "@", "hf_"),
        *('"a":', 'a="', "--a ", "--token ", "-p ", "'a ", "\\", '\\"', "https://hooks.", ".webhook.", "-----BEGIN "),
        *("-----BEGIN PRIVATE KEY-----", "password: |\n", "\n", "a;", "TOKENS=1,"),
    ],
)  # fmt: skip
def test_the_time_grows_with_the_length_of_a_text_only(piece: str) -> None:
    """Eight times the length costs eight times the CPU time; where it grew with the square, 64 times."""

    def seconds(length: int) -> float:
        text = (piece * length)[:length]
        began = time.process_time()
        redacted_command([text])
        return time.process_time() - began

    # What happens to the machine for a moment is no growth.
    assert any(seconds(16_000) < 30 * seconds(2_000) for _ in range(10))
