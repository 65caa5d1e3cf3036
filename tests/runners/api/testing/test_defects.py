"""The suites bite: a plug-in with one defect fails the test that is about it.

The tests run as a user runs them: pytest in a directory of its own, on files beside the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[4]

PLUGINS = '''
import asyncio, itertools, json, random, subprocess
from pathlib import Path
from agentrl import HarnessContext, HarnessResult, OutcomeCode, Sandbox, SandboxError

PROGRAM = Path(__file__).with_name("program.py")

class Agent:
    """Two turns; a subclass has one defect."""
    deadline_s = None
    def mounts(self): return {"/opt/agent/program.py": PROGRAM}
    def prompt(self, context): return context.prompt
    def argv(self, context): return []
    async def run(self, sandbox, context):
        done = await sandbox.run(
            ["python3", "/opt/agent/program.py", type(self).__name__, *self.argv(context)],
            deadline_s=self.deadline_s or context.deadline_s,
            env={"BASE_URL": sandbox.gateway_url, "API_KEY": context.api_key},
            stdin=self.prompt(context).encode(),
        )
        return HarnessResult.of_command(done)

class Swallows(Agent):
    async def run(self, sandbox, context):
        result = await super().run(sandbox, context)
        return HarnessResult(OutcomeCode.POLICY_FINISHED, "", None, 0, 1.0, result.output)

class Ignores(Agent):
    deadline_s = 3600

class LosesLines(Agent):
    def prompt(self, context): return " ".join(context.prompt.split())

class KeyInArgv(Agent):
    def argv(self, context): return [context.api_key]

class WritesKey(Agent): pass  # program.py does
class Rewrites(Agent): pass
class StopsEarly(Agent): pass

class LeavesProcess(Agent):
    async def run(self, sandbox, context):
        subprocess.Popen(["sleep", "30"], start_new_session=True)
        return await super().run(sandbox, context)

class LeavesTask(Agent):
    async def run(self, sandbox, context):
        async def watch(): await asyncio.sleep(30)
        self.task = asyncio.create_task(watch())
        return await super().run(sandbox, context)

class Shares(Agent):
    async def run(self, sandbox, context):
        self.context = context
        await asyncio.sleep(0.01)
        return await super().run(sandbox, self.context)

class Branches(Agent):
    """Sends a sub-agent, and has its history summed up; a subclass has one defect."""
    def mounts(self): return {"/opt/agent/program.py": PROGRAM.with_name("branching.py")}

class SkipsSubagent(Branches): pass  # as branching.py says, all of them
class AsksTwice(Branches): pass
class AltersTask(Branches): pass
class SharesHistory(Branches): pass
class RewritesCall(Branches): pass
class DropsHistory(Branches): pass
class LosesSummary(Branches): pass

class HidesLoss(Agent):
    async def run(self, sandbox, context):
        try:
            return await super().run(sandbox, context)
        except SandboxError:
            return HarnessResult(OutcomeCode.POLICY_FINISHED, "", None, 0, 1.0, "")

class Score:
    """Three words of answer.txt score 1."""
    async def read(self, sandbox, deadline_s):
        return await sandbox.run(["cat", "answer.txt"], deadline_s=deadline_s)
    def score(self, done):
        return 0.0 if done.exit_code else float(len(done.stdout.split()) == 3)
    async def __call__(self, row, sandbox, deadline_s):
        return self.score(await self.read(sandbox, deadline_s))

class Chance(Score):
    draws = itertools.count()
    def score(self, done): return super().score(done) or 0.1 * next(self.draws)

class Decodes(Score):
    def score(self, done):
        done.stdout.decode()
        return super().score(done)

class Trusts(Score):
    def score(self, done): return 1.0 if b"words" in done.stdout or super().score(done) else 0.0

class TakesLong(Score):
    async def read(self, sandbox, deadline_s): return await super().read(sandbox, 3600)

class Forgives(Score):
    async def __call__(self, row, sandbox, deadline_s):
        try:
            return await super().__call__(row, sandbox, deadline_s)
        except SandboxError:
            return 0.0

class PaysLate(Score):
    def score(self, done): return 1.0 if done.timed_out else super().score(done)

def row(name):
    return {"instance_id": name, "problem_statement": "Do it.", "repo_path": "notes"}

def fine(path):
    with path.open() as file:
        for line in file: yield row(line.strip())
def doubles(path):
    for each in fine(path): yield {**each, "instance_id": "one"}
def shuffles(path):
    rows = list(fine(path))
    rows.append(row(f"x{random.random()}"))
    yield from rows
def hoards(path):
    yield from [row(line) for line in path.read_text().split()]
def lacks(path):
    for each in fine(path): yield {"instance_id": each["instance_id"]}

def moody(result): return random.random()
def divides(result): return 1.0 if result.summary.turns == 0 else float("inf")
def inverts(result): return -dict(result.verdict.rewards)["reward"]

def spread(rewards):
    mean = sum(rewards) / len(rewards)
    deviation = (sum((each - mean) ** 2 for each in rewards) / len(rewards)) ** 0.5
    return [(each - mean) / deviation for each in rewards]
def by_place(rewards): return [float(place) for place, _ in enumerate(rewards)]
def short(rewards): return [0.0 for _ in rewards[1:]]
'''

PROGRAM = """
import json, os, sys, urllib.request

defect, messages = sys.argv[1], [{"role": "user", "content": sys.stdin.read()}]
if defect == "WritesKey":
    open("settings.json", "w").write(os.environ["API_KEY"])
answer = None
while answer != "Done.":
    if answer is not None:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "On."}]
    if defect == "Rewrites" and answer is not None:
        messages[0]["content"] += " Be quick."
    request = urllib.request.Request(
        os.environ["BASE_URL"] + "/v1/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)["choices"][0]["message"]["content"]
    if defect == "StopsEarly":
        break
"""

BRANCHING = """
import json, os, sys, urllib.request

defect, task = sys.argv[1], sys.stdin.read()
PARAMETERS = {"type": "object", "properties": {"prompt": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "task", "parameters": PARAMETERS}}]
CHECKPOINT = "You are performing a CONTEXT CHECKPOINT COMPACTION. Sum up what was done."

def ask(messages, **more):
    request = urllib.request.Request(
        os.environ["BASE_URL"] + "/v1/chat/completions",
        json.dumps({"model": "policy", "messages": messages, **more}).encode(),
        {"Authorization": "Bearer " + os.environ["API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]

def work(prompt):
    looked = "Look around." if defect == "AltersTask" else prompt
    own = [{"role": "system", "content": "You look around."}, {"role": "user", "content": looked}]
    if defect == "SkipsSubagent":
        return "It subtracts."
    if defect == "SharesHistory":
        return ask([*messages[:1], {"role": "user", "content": looked}], tools=TOOLS)["content"]
    if defect == "AsksTwice":  # in other words: the same request again is a retry
        ask([*own, {"role": "user", "content": "Be brief."}])
    return ask(own)["content"]

messages = [{"role": "user", "content": task}]
sent = ask(messages, tools=TOOLS)
call = sent["tool_calls"][0]
report = work(json.loads(call["function"]["arguments"])["prompt"])
if defect == "RewritesCall":
    messages += [{"role": "user", "content": "The sub-agent says: " + report}]
else:
    messages += [sent, {"role": "tool", "tool_call_id": call["id"], "content": report}]
messages += [ask(messages, tools=TOOLS)]
if defect == "DropsHistory":
    summary = "much was done"
else:
    summary = ask([*messages, {"role": "user", "content": CHECKPOINT}], tools=TOOLS)["content"]
if defect == "LosesSummary":
    messages += [{"role": "user", "content": "On."}]
else:
    messages = [{"role": "user", "content": task + " " + summary}]
ask(messages, tools=TOOLS)
"""

AGENT = """
class Test{name}(HarnessConformance):
    target = "mine.py:{name}"
    replies = ("A step.", "Done.")
    deadline_s = 0.5
"""
IMPATIENT = f"{AGENT}    grace_s = 1.0\n"
BRANCHES = """
class Test{name}(HarnessConformance):
    target = "mine.py:{name}"
    replies = {{
        "main": (call("task", prompt="Look at a.py and report."), "I see.", "Summed up.", "Done."),
        "Look at a.py and report.": ("It subtracts.",),
    }}
    segments = {{"final": 1, "subagent": 1, "compaction": 1, "wipe": 1}}
    deadline_s = 0.5
"""
GRADER = """
class Test{name}(GraderConformance):
    target = "mine.py:{name}"
    honest = {{"answer.txt": "one two three"}}
    broken = {{"answer.txt": "one"}}
    cheats = {{"a claim": {{"answer.txt": "all words are there"}}}}
"""
READER = """
class Test{name}(ReaderConformance):
    target = "mine.py:{name}"
    path = "rows.txt"
    grader = "mine.py:Score"
"""
HASTY = f"{READER}    first_row_s = 1.0\n"
REWARD = """
class Test{name}(RewardConformance):
    target = "mine.py:{name}"
"""
ADVANTAGE = """
class Test{name}(AdvantageConformance):
    target = "mine.py:{name}"
"""
BRANCH_TEST = "test_its_branches_are_those_that_its_author_expects"
DEFECTS = [
    (AGENT, "Swallows", "test_a_model_that_fails_is_no_success", "reports policy.finished"),
    (
        IMPATIENT,
        "Ignores",
        "test_it_ends_at_its_deadline",
        "did not end after its deadline of 0.5 s",
    ),
    (AGENT, "LosesLines", "test_the_prompt_reaches_the_model_as_it_is", "word by word"),
    (AGENT, "KeyInArgv", "test_its_key_is_in_no_file_and_no_command_line", "a command line has"),
    (AGENT, "WritesKey", "test_its_key_is_in_no_file_and_no_command_line", "settings.json of the"),
    (AGENT, "Rewrites", BRANCH_TEST, "wipe"),
    (AGENT, "StopsEarly", "test_it_takes_every_reply_and_asks_for_no_other", "1 times"),
    (AGENT, "LeavesProcess", "test_nothing_of_a_finished_rollout_runs_on", "sleep 30"),
    (AGENT, "LeavesTask", "test_nothing_of_a_finished_rollout_runs_on", "a task of the agent"),
    (AGENT, "LeavesProcess", "test_a_cancelled_rollout_ends_and_leaves_nothing", "sleep 30"),
    (AGENT, "Shares", "test_two_rollouts_at_once_do_not_meet", "turns of each"),
    (AGENT, "HidesLoss", "test_a_lost_sandbox_is_reported", "its sandbox was lost"),
    (BRANCHES, "SkipsSubagent", "test_it_takes_every_reply_and_asks_for_no_other", "4 times"),
    (BRANCHES, "AsksTwice", "test_it_takes_every_reply_and_asks_for_no_other", "6 times"),
    (BRANCHES, "AltersTask", BRANCH_TEST, "subagent"),
    (BRANCHES, "SharesHistory", BRANCH_TEST, "subagent"),
    (BRANCHES, "RewritesCall", BRANCH_TEST, "{'wipe': 2} != {'wipe': 1}"),
    (BRANCHES, "DropsHistory", BRANCH_TEST, "compaction"),
    (BRANCHES, "LosesSummary", BRANCH_TEST, "wipe"),
    (GRADER, "Chance", "test_the_same_patch_scores_the_same_again", "one patch, 3 scores"),
    (GRADER, "Decodes", "test_rubbish_in_place_of_the_work_is_unsolved", "UnicodeDecodeError"),
    (GRADER, "Decodes", "test_no_output_of_a_command_makes_it_fail", "UnicodeDecodeError"),
    (GRADER, "Trusts", "test_no_cheat_of_its_author_is_paid", "a claim: solved"),
    (GRADER, "TakesLong", "test_commands_that_run_out_of_time_solve_nothing", "3600 s"),
    (GRADER, "PaysLate", "test_commands_that_run_out_of_time_solve_nothing", "out of time: "),
    (GRADER, "Forgives", "test_a_lost_sandbox_is_no_grade", "let SandboxError through"),
    (READER, "doubles", "test_ids_are_unique", "the same instance_id"),
    (READER, "shuffles", "test_a_second_reading_yields_the_same_rows", "in the same order"),
    (
        READER + "    first_row_s = 1.0\n",
        "hoards",
        "test_rows_come_one_by_one",
        "wants the whole file",
    ),
    (READER, "lacks", "test_every_row_is_a_valid_task", "problem_statement"),
    (REWARD, "moody", "test_the_same_rollout_is_paid_the_same_again", "solved"),
    (REWARD, "divides", "test_every_graded_rollout_has_a_finite_reward", "no finite number"),
    (REWARD, "inverts", "test_solving_pays", ""),
    (ADVANTAGE, "spread", "test_a_group_of_equal_rewards_has_no_signal", "ZeroDivisionError"),
    (ADVANTAGE, "by_place", "test_the_order_of_a_group_does_not_matter", ""),
    (ADVANTAGE, "short", "test_there_is_one_finite_number_for_each_reward", "1 values for 2"),
]
"""A suite, the plug-in, the test that fails, and words of its message."""
SOUND = [(AGENT, "Agent"), (BRANCHES, "Branches"), (GRADER, "Score"), (READER, "fine")]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """Run all suites in one pytest; return the message of each failure, by class and test."""
    place = tmp_path_factory.mktemp("user")
    (place / "mine.py").write_text(PLUGINS)
    (place / "program.py").write_text(PROGRAM)
    (place / "branching.py").write_text(BRANCHING)
    (place / "rows.txt").write_text("one\ntwo\n")
    subprocess.run(["git", "init", "-q", "notes"], cwd=place, check=True)
    git = ["git", "-C", "notes", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "commit", "-qm", "base", "--allow-empty"], cwd=place, check=True)
    names = {name: suite for suite, name, *_ in [*DEFECTS, *SOUND]}
    classes = "".join(suite.format(name=name) for name, suite in names.items())
    (place / "test_mine.py").write_text(f"from agentrl.testing import *\n{classes}")
    wanted = [f"test_mine.py::Test{name}::{test}" for _, name, test, _ in DEFECTS]
    wanted += [f"test_mine.py::Test{name}" for _, name in SOUND]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--junitxml=found.xml", *wanted],
        cwd=place,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'runners/api'}", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout[-4000:] + done.stderr[-2000:]
    found: dict[tuple[str, str], str] = {}
    for case in ElementTree.parse(place / "found.xml").iter("testcase"):
        name = case.attrib["name"].partition("[")[0]
        key = case.attrib["classname"].rpartition(".Test")[2], name
        for fault in [*case.iter("failure"), *case.iter("error")]:
            found[key] = found.get(key, "") + fault.attrib["message"] + (fault.text or "")
    return found


@pytest.mark.parametrize(
    ("suite", "name", "test", "words"), DEFECTS, ids=[f"{d[1]}-{d[2]}" for d in DEFECTS]
)
def test_a_defect_fails_the_test_that_is_about_it(
    failures: dict[tuple[str, str], str], suite: str, name: str, test: str, words: str
) -> None:
    assert words in failures[name, test]


def test_plugins_without_a_defect_pass(failures: dict[tuple[str, str], str]) -> None:
    sound = {name for _, name in SOUND}
    assert not {key: text[:3000] for key, text in failures.items() if key[0] in sound}
