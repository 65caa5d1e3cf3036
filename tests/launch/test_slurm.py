"""What a Slurm cluster is asked for: options of sbatch, modules, containers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conf.errors import ConfigError
from conf.sections.slurm import SlurmLaunchConfig
from launch.slurm import container_settings, sbatch_arguments
from tests.fakes.cluster import HOSTS, Cluster, make_cluster, wait_for
from tests.fakes.cluster_config import a_config

PYXIS = (
    "launch.container.runtime=pyxis",
    "launch.container.image='registry.example#team/agentrl:1'",
    "launch.container.mounts=['/data','/scratch:/tmp','/etc/ib:/etc/ib:ro']",
    "launch.container.workdir=/root",
    "launch.container.arguments=[--no-container-mount-home]",
)
APPTAINER = ("launch.container.runtime=apptainer", "launch.container.image=/shared/agentrl.sif")


def slurm(*overrides: str) -> SlurmLaunchConfig:
    launch = a_config(*overrides).launch
    assert isinstance(launch, SlurmLaunchConfig)
    return launch


def faults(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        a_config(*overrides)
    return "\n".join(caught.value.faults)


def test_every_request_is_an_option_of_sbatch() -> None:
    asked = sbatch_arguments(
        slurm(
            *("launch.partition=gpu", "launch.account=lab", "launch.qos=high"),
            *("launch.constraint='h100|h200'", "launch.reservation=rl", "launch.mem='0'"),
            *("launch.cpus_per_node=96", "launch.sbatch=['--gres=nvme:1','--signal=B:TERM@120']"),
        )
    )
    assert asked == (
        *("--exclusive", "--job-name=agentrl", "--nodes=8", "--ntasks-per-node=1"),
        *("--gpus-per-node=8", "--time=1-00:00:00", "--partition=gpu", "--account=lab"),
        *("--qos=high", "--constraint=h100|h200", "--reservation=rl", "--cpus-per-task=96"),
        *("--mem=0", "--gres=nvme:1", "--signal=B:TERM@120"),
    )
    shared = ("launch.exclusive=false", "launch.cpus_per_node=32", "launch.mem=400G")
    assert "--exclusive" not in sbatch_arguments(slurm(*shared))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("launch.sbatch=['--nodes=4']", "the job sets --nodes itself: set launch.nodes instead"),
        ("launch.sbatch=['--parti=x']", "the job sets --partition itself: set launch.partition"),
        ("launch.sbatch=['--output=x']", "the job sets --output itself: leave it out"),
        ("launch.sbatch=['--container-image=x']", "set launch.container.image instead"),
        ("launch.sbatch=['-p x']", "launch.sbatch[0]=-p x must be one option in one line"),
        ('launch.sbatch=["--comment=a\nb"]', "launch.sbatch[0]=--comment=a"),
        ("launch.qos='a b'", "launch.qos=a b"),
        ("launch.mem=4TB", "launch.mem=4TB must be a size such as 1800G"),
        ("launch.exclusive=false", "no launch.cpus_per_node or launch.mem"),
        ("launch.container.image=x", "image without a launch.container.runtime: set it to pyxis"),
        ("launch.container.mounts=[/x]", "mounts without a launch.container.runtime"),
        ("launch.container.runtime=pyxis", "without an image: set launch.container.image"),
        (
            "launch.container.mounts=[data]",
            "mounts[0]=data must be SOURCE[:TARGET[:ro]]",
        ),
        ("launch.container.mounts=['/a:/b:x']", "launch.container.mounts[0]=/a:/b:x"),
    ],
)
def test_a_request_that_cannot_work_is_refused_with_its_fix(override: str, message: str) -> None:
    assert message in faults(override)


@pytest.mark.parametrize(
    ("container", "argument", "message"),
    [
        (PYXIS, "--container-im=x", "the job sets --container-image itself"),
        (PYXIS, "--mem=0", "no option of a container of srun"),
        (APPTAINER, "--bind=/x", "set launch.container.mounts instead"),
        (APPTAINER, "--nv", "the job sets --nv itself: leave it out"),
        (APPTAINER, "--cleanenv", "the environment that it empties: leave it out"),
        (APPTAINER, "--containall", "the environment that it empties: leave it out"),
    ],
)
def test_an_argument_of_the_container_that_the_job_sets_is_refused(
    container: tuple[str, ...], argument: str, message: str
) -> None:
    given = [line for line in container if "arguments" not in line]
    assert message in faults(*given, f"launch.container.arguments=['{argument}']")


def test_apptainer_may_be_contained_in_its_own_file_system() -> None:
    assert slurm(*APPTAINER, "launch.container.arguments=['--contain']").container.arguments


def test_a_shared_directory_that_cannot_be_mounted_is_refused() -> None:
    assert "cannot be mounted into a container" in faults("launch.shared_dir='/sha:red'", *PYXIS)
    assert slurm("launch.shared_dir='/sha:red'").shared_dir == Path("/sha:red")


def test_the_shared_directory_is_mounted_once() -> None:
    assert container_settings(slurm(*PYXIS)) == {
        "SRUN_CONTAINER": (
            "--container-image=registry.example#team/agentrl:1",
            "--container-mounts=/shared:/shared,/data:/data,/scratch:/tmp,/etc/ib:/etc/ib:ro",
            *("--container-workdir=/root", "--no-container-mount-home"),
        ),
        "IN_CONTAINER": (),
    }
    own = container_settings(slurm(*APPTAINER, "launch.container.mounts=['/lustre/a:/shared']"))
    assert own == {
        "SRUN_CONTAINER": (),
        "IN_CONTAINER": (
            *("apptainer", "exec", "--nv", "--bind=/lustre/a:/shared", "/shared/agentrl.sif"),
        ),
    }
    assert not any(container_settings(slurm()).values())


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return make_cluster(tmp_path)


def run(cluster: Cluster, *overrides: str, **given: str) -> str:
    """Run the job to its end; return its exit code."""
    done = cluster.start(cluster.write("slurm", *overrides), **given)
    assert done.returncode == 0, done.stderr
    wait_for(cluster.root / "fake" / "slurm_rc")
    return (cluster.job / "state" / "exit_code").read_text().strip()


def log(cluster: Cluster) -> str:
    return (cluster.job / "logs" / "slurm-4242.log").read_text()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("container", "image"),
    [((), "host"), (PYXIS, "registry.example#team/agentrl:1"), (APPTAINER, "/shared/agentrl.sif")],
)
def test_every_program_of_ray_runs_in_the_container(
    cluster: Cluster, container: tuple[str, ...], image: str
) -> None:
    assert run(cluster, *container) == "0", log(cluster)
    assert {line.split()[-1] for line in cluster.said("containers")} == {image}
    assert {line.split()[0] for line in cluster.said("containers")} >= {"start", "list", "job"}
    assert sorted(cluster.said("ended")) == sorted(HOSTS)
    assert len(cluster.calls("python -u train.py")) == 1


@pytest.mark.integration
def test_the_exit_code_of_a_job_in_a_container_is_the_job_s(cluster: Cluster) -> None:
    assert run(cluster, *PYXIS, FAKE_TRAIN_EXIT="9") == "1"
    (step,) = cluster.calls("srun --overlap")
    assert "--nodelist head --container-image=" in step


def make_modules(root: Path, code: int) -> Path:
    """Write an installation of environment modules; return its MODULESHOME."""
    init = root / "modules" / "init" / "bash"
    init.parent.mkdir(parents=True)
    # Like the real one, it reads variables that nobody has set.
    init.write_text(f'module() {{ echo "$UNSET$*" >>"$FAKE_DIR/loaded"; return {code}; }}\n')
    return init.parents[1]


@pytest.mark.integration
def test_modules_are_loaded_before_the_nodes_start(cluster: Cluster) -> None:
    home = make_modules(cluster.root, 0)
    modules = "launch.modules=[cuda/12.9,nccl/2.27]"
    assert run(cluster, modules, MODULESHOME=str(home)) == "0", log(cluster)
    assert cluster.said("loaded") == ["load cuda/12.9 nccl/2.27"]


@pytest.mark.integration
def test_a_module_that_cannot_be_loaded_ends_the_job_before_a_node_starts(
    cluster: Cluster,
) -> None:
    home = make_modules(cluster.root, 1)
    assert run(cluster, "launch.modules=[cuda/12.9]", MODULESHOME=str(home)) == "3"
    assert "module load cuda/12.9 failed" in log(cluster)
    assert not cluster.calls("srun")


def test_the_scripts_of_a_job_in_a_container_are_valid(cluster: Cluster) -> None:
    cluster.write("slurm", *PYXIS)
    settings = (cluster.root / "out" / "settings.sh").read_text()
    assert "IN_CONTAINER=()" in settings
    for script in (cluster.root / "out").glob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)
