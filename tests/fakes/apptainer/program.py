"""A stand-in for the ``apptainer`` program: instances are bubblewraps over real overlay mounts.

Apptainer cannot be installed where this was written, so flags, messages and exit codes are those of
its source (1.5.3-312-g917d66577), read and not run:

- flags and which commands have them: ``cmd/internal/cli/action_flags.go`` (``--pwd`` and ``--pid``
  are not of ``instance start``), ``instance_{list,stop}_linux.go``; an unknown flag or a wrong
  number of words: ``apptainer.go`` (exit code 1). Fatal errors end with 255: ``pkg/sylog``.
- names, "already exists", "no instance found": ``internal/pkg/instance/instance_linux.go``,
  ``internal/app/apptainer/instance_linux.go``, ``e2e/instance/instance.go`` (testGhostInstance).
- a missing image, ``--overlay`` and its colon: ``launcher_linux.go``, ``prepare_linux.go``.
- networks but ``none``: ``container_linux.go`` (prepareNetworkSetup), refused here.
- ``--cpus`` beyond the machine's: ``cmd/internal/cli/cgroups.go``.
- the environment of ``exec`` is the caller's without ``--cleanenv``; variables stand for flags
  (``EnvKeys``): of these the stand-in follows ``APPTAINER_BIND``, to show that nothing sets it.
- where a command starts: ``process_linux.go``; the overlay's ``upper`` and ``work``:
  ``container_linux.go``.
- an instance's logs, which stay in the configuration directory when it ends:
  ``instance_linux.go`` (SetLogFile), ``cleanup_linux.go``, ``e2e/instance/instance.go``.

Other than Apptainer it needs root, makes no user namespace (the instance's root has the
capabilities that our set-up needs, and no more), sets no limits, and pulls nothing: every
``docker://`` name is the same image, of the host's programs and what the test's script made.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(sys.argv[0]).absolute().parent
INSTANCES, IMAGES = HERE / "instances", HERE / "pulled"
HOME = Path(os.environ.get("APPTAINER_CONFIGDIR") or Path.home() / ".apptainer")
LOGS = HOME / "instances" / "logs" / os.uname().nodename / pwd.getpwuid(os.getuid()).pw_name
PREFIX = Path(sys.base_prefix).resolve()
PATH = f"{PREFIX}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
CAPABILITIES = "+chown,+dac_override,+fowner,+kill,+setgid,+setpcap,+setuid"
BOTH = {
    **dict.fromkeys(("--fakeroot", "--containall", "--cleanenv", "--no-home", "--net"), 0),
    **dict.fromkeys(("--no-mount", "--network", "--overlay", "--bind"), 1),
    **dict.fromkeys(("--memory", "--memory-swap", "--pids-limit", "--cpus"), 1),
}
"""Flags of ``instance start`` and ``exec`` → how many words follow each; of all, those used."""
EXEC = {**BOTH, "--pwd": 1, "--cwd": 1, "--pid": 0}
MOUNTS = ("proc", "sys", "dev", "devpts", "home", "tmp", "hostfs", "cwd", "bind-paths")
Flags = dict[str, list[str]]


def fatal(message: str) -> NoReturn:
    """End as ``sylog.Fatalf`` does."""
    print(f"{'FATAL:':<8} {message}", file=sys.stderr)
    sys.exit(255)


def misuse(command: str, message: str) -> NoReturn:
    """End as a command does that cobra refuses, or that returns an error."""
    print(f'Error for command "{command}": {message}\n', file=sys.stderr)
    print("Run 'apptainer --help' for more detailed usage information.", file=sys.stderr)
    sys.exit(1)


def parse(command: str, words: list[str], known: dict[str, int]) -> tuple[Flags, list[str]]:
    """Return the flags before the first other word, and the rest."""
    flags: Flags = {}
    while words and words[0].startswith("-"):
        name, *words = words
        if name not in known:
            misuse(command, f"unknown flag: {name}")
        if len(words) < known[name]:
            misuse(command, f"flag needs an argument: {name}")
        flags.setdefault(name, []).extend(words[: known[name]])
        words = words[known[name] :]
    return flags, words


def check(flags: Flags) -> None:
    """Refuse values that Apptainer refuses."""
    for name in ",".join(flags.get("--no-mount", [])).split(","):
        if name and name not in MOUNTS and not name.startswith("/"):
            print(f"WARNING: Ignoring unknown mount type '{name}'", file=sys.stderr)
    if flags.get("--network", ["none"]) != ["none"]:
        fatal("the stand-in has no network but none")
    if ("--network" in flags) != ("--net" in flags):
        fatal("the stand-in wants --net with --network")
    for cpus in flags.get("--cpus", []):
        if not 0.01 <= float(cpus) <= (os.cpu_count() or 1):
            fatal(f"cpus value must be in range 0.01 - {os.cpu_count()}")
    for size in flags.get("--memory", []):
        if not re.fullmatch(r"\d+[bkmgtBKMGT]?", size):
            fatal(f"invalid memory value: invalid size: '{size}'")


def read_instances(pattern: str) -> list[dict[str, Any]]:
    """Return the instances whose names match; those that ended are forgotten."""
    found = []
    for file in sorted(INSTANCES.glob(f"{pattern}.json")):
        try:
            facts: dict[str, Any] = json.loads(file.read_text())
        except FileNotFoundError:
            continue
        if Path(f"/proc/{facts['pid']}").exists():
            found.append(facts)
        else:
            file.unlink(missing_ok=True)
    return found


def find_image(name: str) -> Path:
    """Return the root of an image; a SIF file here is a text that names a directory."""
    if name.startswith("docker://"):
        root = IMAGES / re.sub(r"[^A-Za-z0-9.]", "_", name)
        if not root.exists():
            make_root(root)
        return root
    path = Path(name).absolute()
    if not path.exists():
        fatal(
            f"While checking container encryption: could not open image {path}: failed to retrieve "
            f"path for {path}: lstat {path}: no such file or directory"
        )
    return path if path.is_dir() else Path(path.read_text())


def make_root(root: Path) -> None:
    """Make the directories and files that an image has of its own."""
    with (HERE / "pulls").open("a") as log:
        log.write(f"{root.name}\n")
    made = root.with_name(f".{root.name}-{os.getpid()}")
    for name in ("etc", "home", "opt", "proc", "dev", "root", "sys", "mnt", "tmp", "var/lib"):
        (made / name).mkdir(parents=True)
    for name in HOST:
        if Path(name).is_symlink():
            (made / name.lstrip("/")).symlink_to(os.readlink(name))  # noqa: PTH115 (text as it is)
        elif Path(name).is_dir():
            (made / name.lstrip("/")).mkdir()
    (made / PREFIX.relative_to("/")).mkdir(parents=True, exist_ok=True)
    (made / "tmp").chmod(0o1777)
    (made / "root").chmod(0o755)
    (made / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (made / "etc/group").write_text("root:x:0:\n")
    for name in ETC:
        host = Path("/etc") / name
        if host.is_dir():
            shutil.copytree(host, made / "etc" / name, symlinks=True)
        elif host.exists():
            shutil.copy2(host, made / "etc" / name)
    if (script := HERE / "image").exists():
        done = ["sh", "-c", script.read_text()]
        subprocess.run(
            [*bubblewrap(made), "--", *done], check=True, stdin=subprocess.DEVNULL, stdout=2
        )
    try:
        made.rename(root)
    except OSError:  # another one was faster
        shutil.rmtree(made)


def bubblewrap(root: Path, binds: list[str] | None = None) -> list[str]:
    """Return the beginning of a command in namespaces of its own over a root directory."""
    words = ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--cap-add", "ALL"]
    words += ["--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev"]
    for path in HOST:
        if Path(path).is_dir() and not Path(path).is_symlink():
            words += ["--ro-bind", path, path]
    if not PREFIX.is_relative_to("/usr"):
        words += ["--ro-bind", str(PREFIX), str(PREFIX)]
    bind = [*(binds or []), *filter(None, os.environ.get("APPTAINER_BIND", "").split(","))]
    for each in bind:
        source, _, rest = each.partition(":")
        words += ["--bind", source, rest.partition(":")[0] or source]
    return words


def inside(pid: int, words: list[str], flags: Flags) -> list[str]:
    """Return the command line that runs a command in an instance."""
    clean = "--cleanenv" in flags or "--containall" in flags
    env = [] if not clean else ["-i"]
    return [
        *("nsenter", "--target", str(pid), "--mount", "--pid", "--net", "--ipc"),
        *("setpriv", "--no-new-privs", "--inh-caps=-all", f"--bounding-set=-all,{CAPABILITIES}"),
        *("env", *env, f"PATH={PATH}", "HOME=/root", "APPTAINER_CONTAINER=x", *words),
    ]


def start(words: list[str]) -> None:
    """Start an instance."""
    flags, words = parse("start", words, BOTH)
    if len(words) < 2:
        misuse("start", f"requires at least 2 arg(s), only received {len(words)}")
    image, name = words[:2]
    check(flags)
    if not re.fullmatch(r"[a-zA-Z0-9._-]+", name):
        fatal(f"{name} is not a valid instance name")
    root = find_image(image)
    if read_instances(name):
        fatal(f"instance {name} already exists")
    if "--containall" not in flags or "--fakeroot" not in flags or "--net" not in flags:
        fatal("the stand-in only starts instances that are contained, without root and network")
    overlay = Path(flags["--overlay"][0].partition(":")[0])
    if not overlay.is_dir():
        fatal(f"container creation failed: while loading overlay images: failed to open overlay "
              f"image {overlay}: failed to retrieve path for {overlay}: lstat {overlay}: no such "
              "file or directory")  # fmt: skip
    for each in ("upper", "work"):
        (overlay / each).mkdir(exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / f"{name}.out").touch()
    joined = INSTANCES / f"{name}.root"
    joined.mkdir()
    mount = f"lowerdir={root},upperdir={overlay}/upper,workdir={overlay}/work"
    reader, pid_fd = os.pipe()
    # The mount is in a namespace of its own, so it ends with the instance.
    script = 'mount -t overlay overlay -o "$1" "$2"; shift 2; exec "$@"'
    subprocess.Popen(
        [
            *("unshare", "--mount", "sh", "-ec", script, "sh", mount, str(joined)),
            *(*bubblewrap(joined), "--info-fd", str(pid_fd), "--", "sleep", "infinity"),
        ],
        pass_fds=[pid_fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(LOGS / f"{name}.err").open("wb"),
        start_new_session=True,
    )
    os.close(pid_fd)
    with os.fdopen(reader) as file:
        text = file.read()
    if not text:
        fatal(f"failed to start instance: {(LOGS / f'{name}.err').read_text()}")
    pid = json.loads(text)["child-pid"]
    until = time.monotonic() + 20
    while not is_up(pid):
        if time.monotonic() > until:
            fatal("failed to start instance: it does not come up")
        time.sleep(0.002)
    facts = {"name": name, "pid": pid, "image": image, "flags": flags}
    made = INSTANCES / f"{name}.new"
    made.write_text(json.dumps(facts))
    made.rename(INSTANCES / f"{name}.json")
    print("INFO:    instance started successfully", file=sys.stderr)


def is_up(pid: int) -> bool:
    """Return whether the first process of an instance runs in the image's root."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep" or bool(
            Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        )
    except OSError:
        return False


def list_instances(words: list[str]) -> None:
    """Print instances as JSON."""
    flags, names = parse("list", words, {"--json": 0, "--all": 0})
    if "--json" not in flags or len(names) > 1:
        misuse("list", "the stand-in lists as JSON, by at most one name")
    listed = [
        {"instance": each["name"], "pid": each["pid"], "img": each["image"], "ip": ""}
        for each in read_instances(names[0] if names else "*")
    ]
    print(json.dumps({"instances": listed}, indent="\t"))


def stop(words: list[str]) -> None:
    """End instances."""
    flags, names = parse("stop", words, {"--force": 0, "--all": 0, "--timeout": 1})
    if not names and "--all" not in flags:
        misuse("stop", "invalid command")
    if "--force" not in flags:
        fatal("the stand-in only stops by --force: its first process ignores other signals")
    found = read_instances(names[0] if names else "*")
    if not found:
        misuse("stop", "no instance found")
    for each in found:
        print(f"INFO:    Stopping {each['name']} instance of {each['image']} (PID={each['pid']})",
              file=sys.stderr)  # fmt: skip
        os.kill(each["pid"], signal.SIGKILL)
        while Path(f"/proc/{each['pid']}").exists():
            time.sleep(0.002)
        (INSTANCES / f"{each['name']}.json").unlink(missing_ok=True)
        (INSTANCES / f"{each['name']}.root").rmdir()


def execute(words: list[str]) -> None:
    """Run a command in an instance, or in a container of an image that ends with it."""
    flags, words = parse("exec", words, EXEC)
    if len(words) < 2:
        misuse("exec", f"requires at least 2 arg(s), only received {len(words)}")
    check(flags)
    target, *command = words
    at = (flags.get("--pwd") or flags.get("--cwd") or [""])[0]
    # A directory that was asked for must exist; else the home is used, or the root.
    place = f'cd "{at}" || exit 255' if at else f'cd "{Path.cwd()}" 2>/dev/null || cd /root || cd /'
    moved = ["sh", "-c", f'{place}; exec "$@"', "sh", *command]
    if target.startswith("instance://"):
        name = target.removeprefix("instance://")
        found = read_instances(name)
        if len(found) != 1:
            fatal(f"While setting image/instance: no instance found with name {name}")
        argv = inside(found[0]["pid"], moved, flags)
    else:
        argv = [*bubblewrap(find_image(target), flags.get("--bind")), "--", *moved]
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    for folder in (INSTANCES, IMAGES):
        folder.mkdir(exist_ok=True)
    match sys.argv[1:]:
        case ["instance", "start", *rest]:
            start(rest)
        case ["instance", "list", *rest]:
            list_instances(rest)
        case ["instance", "stop", *rest]:
            stop(rest)
        case ["exec", *rest]:
            execute(rest)
        case rest:
            misuse("apptainer", f'unknown command "{" ".join(rest)}" for "apptainer"')
