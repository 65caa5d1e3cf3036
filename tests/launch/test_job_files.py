"""Files of a job: golden for one, checksums for all others, valid for bash and shellcheck."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from conf.errors import ConfigError
from launch.job_files import render_files, render_settings, write_job
from launch.plan import JobPlan, plan_job
from tests.fakes.cluster_config import LAUNCHERS, MODELS, SCENARIOS, a_config

GOLDEN = Path(__file__).parent / "golden"
COMMAND = ["agentrl", "launch", "trainer=slime", "--out", "a job"]


def plan_of(model: str, scenario: str, launch: str) -> JobPlan:
    whole = a_config("launch.secrets=[WANDB_API_KEY]", model=model)
    sections = {
        "scenario": a_config(f"scenario={scenario}").scenario,
        "launch": a_config("launch.secrets=[WANDB_API_KEY]", launch=launch).launch,
    }
    return plan_job(whole.model_copy(update=sections))


def golden(name: str, text: str, update: bool) -> None:
    file = GOLDEN / name
    if update:
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    assert file.read_text("utf-8") == text


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


def test_a_job_s_settings_plan_and_manifest_are_unchanged(update: bool) -> None:
    slurm = render_files(plan_of("glm4_7_355b_a32b", "mixed", "slurm"), command=COMMAND)
    golden("settings.sh", slurm["settings.sh"], update)
    golden("plan.txt", slurm["plan.txt"], update)
    golden("runtime_env.json", slurm["runtime_env.json"], update)
    cluster = render_files(plan_of("qwen3_6_35b_a3b", "linear", "kubernetes"), command=COMMAND)
    manifest = json.loads(cluster["rayjob.json"])
    for name in manifest["items"][0]["data"]:  # they stand in other files already
        manifest["items"][0]["data"][name] = "…"
    golden("rayjob.json", json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", update)


def test_the_files_of_every_model_scenario_and_launcher_are_unchanged(update: bool) -> None:
    found = {}
    for model in MODELS:
        for scenario in SCENARIOS:
            for launch in LAUNCHERS:
                plan = plan_of(model, scenario, launch)
                text = render_settings(plan, COMMAND)
                digest = hashlib.sha256(text.encode()).hexdigest()[:16]
                found[f"{model} {scenario} {launch}"] = digest
    golden("checksums.json", json.dumps(found, indent=2) + "\n", update)


@pytest.mark.integration
@pytest.mark.parametrize("launch", LAUNCHERS)
def test_the_scripts_pass_bash_and_shellcheck(launch: str, tmp_path: Path) -> None:
    start = write_job(plan_of("glm4_7_355b_a32b", "mixed", launch), tmp_path, command=COMMAND)
    scripts = sorted(tmp_path.glob("*.sh"))
    assert start in scripts
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
        assert (
            script.name in ("settings.sh", "steps.sh") or "set -euo pipefail" in script.read_text()
        )
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is missing (apt-get install shellcheck)")
    linted = subprocess.run(
        ["shellcheck", "-x", "-P", "SCRIPTDIR", *scripts], capture_output=True, text=True
    )
    assert linted.returncode == 0, linted.stdout


def test_values_reach_the_shell_unchanged(tmp_path: Path) -> None:
    nasty = '/shared/it\'s $(touch /tmp/x) [0]*3 "quoted"'
    config = a_config()
    model = config.model.model_copy(update={"path": Path(nasty)})
    plan = plan_job(config.model_copy(update={"model": model}))
    write_job(plan, tmp_path, command=["agentrl", "launch", "a\nb=$(false)"])
    script = 'source "$1"; printf "%s\\0" "$HF_CHECKPOINT" "${TRAIN_ARGS[@]}"'
    shown = subprocess.run(
        ["bash", "-euc", script, "-", tmp_path / "settings.sh"], capture_output=True, check=True
    )
    first, *words = shown.stdout.decode().split("\0")[:-1]
    assert first == nasty
    assert words == plan.to_dict()["arguments"]


def test_an_element_with_a_comma_is_quoted(tmp_path: Path) -> None:
    """To shellcheck it would be two elements, with the comma of another language between."""
    image = ("launch.container.runtime=pyxis", "launch.container.image=a.sqsh")
    plan = plan_job(a_config(*image, "launch.container.mounts=['/data:/d']"))
    write_job(plan, tmp_path, command=COMMAND)
    text = (tmp_path / "settings.sh").read_text()
    assert "'--container-mounts=/shared:/shared,/data:/d'" in text


def test_writing_twice_gives_the_same_files(tmp_path: Path) -> None:
    plan = plan_of("qwen3_30b_a3b", "linear", "ssh")
    write_job(plan, tmp_path, command=COMMAND)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    write_job(plan, tmp_path, command=COMMAND)
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_the_manifest_names_secrets_and_holds_none() -> None:
    plan = plan_of("qwen3_30b_a3b", "linear", "kubernetes")
    manifest = json.loads(render_files(plan, command=COMMAND)["rayjob.json"])
    configuration, job = manifest["items"]
    spec = job["spec"]["rayClusterSpec"]
    (workers,) = spec["workerGroupSpecs"]
    assert workers["replicas"] == 7
    for group in (spec["headGroupSpec"], workers):
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
        (secret,) = [entry for entry in container["env"] if "valueFrom" in entry]
        assert secret["name"] == "WANDB_API_KEY"
        assert secret["valueFrom"]["secretKeyRef"] == {"name": "agentrl", "key": "WANDB_API_KEY"}
    assert set(configuration["data"]) == {
        *("settings.sh", "steps.sh", "entry.sh", "export.sh", "preflight.sh"),
        *("check_nodes.py", "convert.py", "config.json"),
    }


def test_a_secret_in_launch_env_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_job(a_config("launch.env=['HF_TOKEN=x','PYTHONPATH=y','NCCL_DEBUG=INFO']"))
    assert len(caught.value.faults) == 2
    assert "launch.env sets HF_TOKEN, a secret" in "".join(caught.value.faults)
    assert "launch.env sets PYTHONPATH, which the job sets itself" in "".join(caught.value.faults)


def test_no_script_ends_processes_by_name() -> None:
    for script in (Path(__file__).parents[2] / "launch" / "scripts").iterdir():
        text = script.read_text()
        for word in ("pkill", "killall", "ray stop", "set -x"):
            assert word not in text, script
