"""The examples, run as their README or their cells say; ``test_guides.py`` runs two, and
``test_gateway_nginx.py`` one.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

from runners.records.store.run_store import RunStore
from tests.fakes.followed_page import follow
from tests.fakes.one_gpu import write_qwen3_0_6b

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
RUN_BY_GUIDES = {"gateway", "own_repository"}


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a copy of the example that the test names."""
    return Path(copytree(EXAMPLES / request.param, tmp_path / "work"))


def follow_readme(place: Path) -> list[str]:
    """Run the commands of the example's README; return what each block printed."""
    return asyncio.run(follow(place / "README.md", place, {}))


def test_every_example_is_on_the_page_and_run_by_a_test() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    page = (EXAMPLES / "README.md").read_text("utf-8")
    files = [f"test_{of}.py" for of in ("examples", "guides", "gateway_nginx")]
    tests = "".join((ROOT / "tests" / file).read_text() for file in files)
    for folder in folders:
        assert f"]({folder}/" in page, folder
        assert f'"{folder}"' in tests, folder


@pytest.mark.integration
@pytest.mark.parametrize("place", ["own_reward"], indirect=True)
def test_a_campaign_trains_on_a_reward_that_reads_the_diff(place: Path) -> None:
    assert "reward.py:small_diff" in follow_readme(place)[0]
    with RunStore.open(place / "trained", read_only=True) as store:
        for record in store.rollouts(counts=True):
            changed = record.patch.count("\n+") + record.patch.count("\n-") - 2
            solved = record.solved and record.patch
            assert record.reward == pytest.approx(1 - 0.02 * changed if solved else 0.0)


@pytest.mark.integration
@pytest.mark.parametrize("place", ["own_agent"], indirect=True)
def test_a_program_in_a_yaml_file_is_the_agent_of_a_campaign(place: Path) -> None:
    follow_readme(place)
    with RunStore.open(place / "trained", read_only=True) as store:
        rollouts = store.rollouts(counts=True)
        assert {record.outcome.code.value for record in rollouts} == {"policy.finished"}
        assert all("answer.txt" in record.patch for record in rollouts)


@pytest.mark.integration
@pytest.mark.parametrize("place", ["referee"], indirect=True)
def test_the_referee_judges_a_gateway_by_its_adapter(place: Path) -> None:
    (printed,) = follow_readme(place)
    assert "lost 0, ghost 0, doubled 0, invented 0" in printed
    assert "five_calls" in (place / "out.html").read_text()
    for adapter in place.glob("*.py"):
        lines = [line for line in adapter.read_text().splitlines() if line.strip()]
        assert len(lines) <= 30, adapter.name


@pytest.mark.parametrize("place", ["one_gpu"], indirect=True)
@pytest.mark.integration
def test_the_run_on_a_gpu_is_composed_with_its_own_model(place: Path, tmp_path: Path) -> None:
    model = write_qwen3_0_6b(tmp_path)
    file = place / "conf" / "model" / "qwen3_0_6b.yaml"
    file.write_text(file.read_text().replace("/models/Qwen3-0.6B", str(model)))
    for line in (place / "README.md").read_text().splitlines():
        if line.startswith("agentrl "):
            _, command, *arguments = shlex.split(line)
            arguments = [argument for argument in arguments if argument != "--dry-run"]
            shown = subprocess.run(
                [sys.executable, "-m", "cli.main", "show", "--json", *arguments],
                cwd=place,
                capture_output=True,
                text=True,
                check=True,
                env={"PYTHONPATH": str(ROOT), "PATH": ""},
            )
            config = json.loads(shown.stdout)
            assert (config["model"]["kind"], config["model"]["path"]) == ("local", str(model))
            assert config["trainer"]["device"] == "cuda", command


@pytest.mark.integration
@pytest.mark.parametrize("place", ["notebook"], indirect=True)
def test_the_cells_of_the_notebook_run_in_order(place: Path) -> None:
    """As Jupyter runs them: in a loop of events, the value of a cell's last line shown."""
    notebook = json.loads((place / "campaign.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells), "outputs are not kept"
    program = "import ast, asyncio, json, sys\n" + CELLS
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(["".join(cell["source"]) for cell in cells]),
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'runners' / 'api'}", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    started, steps, chains = done.stdout.split("\n", 2)
    assert started.startswith("('DONE', {'sampled': ")
    assert steps.startswith("([(1, ")
    assert chains.startswith("final ")


CELLS = """
async def main():
    names = {}
    for source in json.load(sys.stdin):
        *before, last = ast.parse(source).body
        if not isinstance(last, ast.Expr):
            exec(source, names)
            continue
        exec(compile(ast.Module(before, []), "cell", "exec"), names)
        print(eval(compile(ast.Expression(last.value), "cell", "eval"), names))

asyncio.run(main())
"""
